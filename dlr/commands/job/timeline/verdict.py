"""A job's life in a sentence, for who reads nothing else. Pure."""

from __future__ import annotations

from crds.job_status import JobState
from dlr.commands.job.report import FINISHED
from dlr.commands.job.timeline.blame import FAILED, Failure
from dlr.commands.job.timeline.life import Lane, Life
from dlr.commands.output import duration, plain

LOST = (JobState.RECOVERING.value, JobState.DOWN.value)
"""States in which a job is because of a failure."""
MOST_CHARACTERS = 160
"""Of what the last failure said, and of why the job does not train."""


def verdict(life: Life) -> str:
    """How it stands, what failures cost, and which was the last."""
    failed = sorted(
        ((failure, lane) for lane in life.lanes for failure in lane.failures if not failure.follows),
        key=lambda pair: pair[0].at,
    )
    if life.phase in FINISHED:
        head = f"{life.phase} after {duration(life.seconds)}"
    else:
        now = life.states[-1]
        state = "" if now.state == life.phase else f": {now.state}"
        head = f"{life.phase}{state} for {duration(now.seconds)}"
    if life.why and (not failed or life.phase not in FINISHED):  # else the last failure says why it ended
        head = f"{head}: {_cut(life.why)}"
    if not failed:
        again = f" {life.redone} trained again." if life.redone else ""
        return f"{head}. Nothing has failed.{again}" if life.why else f"{head}, without a failure.{again}"
    lost = sum(span.seconds for span in life.states if span.state in LOST)
    many = "1 failure" if len(failed) == 1 else f"{len(failed)} failures"
    again = f" and {life.redone} trained again" if life.redone else ""
    return f"{head}; {many} cost {duration(lost)}{again}. {_told(*failed[-1], len(failed))}"


def _told(failure: Failure, lane: Lane, count: int) -> str:
    which = "It was" if count == 1 else "The last was"
    said = _cut(failure.text)
    ending = f": {said}." if said else "."
    what = "a failure" if failure.what == FAILED else failure.what
    return f"{which} {what} of {lane.title}, after {duration(failure.at)}{ending}"


def _cut(text: str) -> str:
    said = plain(text).rstrip(".")
    return said if len(said) <= MOST_CHARACTERS else f"{said[: MOST_CHARACTERS - 1]}…"
