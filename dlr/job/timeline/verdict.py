"""A job's life in a sentence, for who reads nothing else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from controller.wording import counted
from crds.job_status import JobState
from dlr.job.failures import SAME_MOMENT
from dlr.job.report import FINISHED
from dlr.job.timeline.blame import Failure
from dlr.job.timeline.episodes import Span
from dlr.job.timeline.life import Lane, Life
from dlr.job.wording import duration, plain

LOST = (JobState.RECOVERING.value, JobState.DOWN.value)
"""States in which a job is because of a failure."""
STRUCK = (JobState.FORMING.value, JobState.PENDING.value)
"""States in which a job may be because of a failure, or for another reason."""
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
    spans = lost_spans(life.states, [failure.at for failure, _ in failed])
    lost = sum(end - begin for begin, end in spans)
    many = counted(len(failed), "failure")
    again = f" and {life.redone} trained again" if life.redone else ""
    return f"{head}; {many} cost {duration(lost)}{again}. {_told(*failed[-1], len(failed))}"


def lost_spans(states: Sequence[Span], failed_at: Sequence[float]) -> list[tuple[float, float]]:
    """Begins and ends of the times in which failures kept the job from training.

    A Pod that is deleted with time to save changes the world in good order, and ends late: the job is Forming
    or Pending meanwhile, not Recovering. That counts if a failure lies in it and the job has trained before.
    """
    leeway, has_trained = SAME_MOMENT.total_seconds(), False
    found: list[tuple[float, float]] = []
    for trains, group in groupby(states, lambda span: span.state == JobState.TRAINING):
        spans = list(group)
        begin, end = spans[0].begin, spans[-1].end
        is_struck = has_trained and any(begin - leeway <= at <= end for at in failed_at)
        for span in spans:
            if span.state not in LOST and not (is_struck and span.state in STRUCK):
                continue
            if found and found[-1][1] == span.begin:
                found[-1] = (found[-1][0], span.end)
            else:
                found.append((span.begin, span.end))
        has_trained = has_trained or trains
    return found


def _told(failure: Failure, lane: Lane, count: int) -> str:
    which = "It was" if count == 1 else "The last was"
    said = _cut(failure.text)
    ending = f": {said}." if said else "."
    what = failure.what
    return f"{which} {what} of {lane.title}, after {duration(failure.at)}{ending}"


def _cut(text: str) -> str:
    said = plain(text).rstrip(".")
    return said if len(said) <= MOST_CHARACTERS else f"{said[: MOST_CHARACTERS - 1]}…"
