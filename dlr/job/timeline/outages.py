"""What failures cost a job: the times until it trained again, and its life in a sentence. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from controller.wording import counted, shortened
from crds.job_status import JobState
from dlr.job.failures import SAME_MOMENT
from dlr.job.report import FINISHED
from dlr.job.timeline.blame import Failure
from dlr.job.timeline.episodes import Span, members_of
from dlr.job.timeline.life import Lane, Life
from dlr.job.wording import duration, loss, plain, significant

LOST = (JobState.RECOVERING.value, JobState.DOWN.value)
"""States in which a job is because of a failure."""
STRUCK = (JobState.FORMING.value, JobState.PENDING.value)
"""States in which a job may be because of a failure, or for another reason."""
MOST_CHARACTERS = 160
"""The length of a failure's message, and of the reason why a job does not train, in the sentence."""
LEEWAY_SECONDS = SAME_MOMENT.total_seconds()
HOUR_SECONDS = 3_600.0


@dataclass(frozen=True)
class Outage:
    """The time from a failure until training went on, or up to now."""

    begin: float
    """Seconds since the job's submission, as in a `Life`."""
    end: float
    workers: int | None
    """Workers in the world that broke; None if their number is not known."""
    failures: tuple[tuple[Failure, Lane], ...]
    """Failures of that time that did not follow from others; the first one began it."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def worker_hours(self) -> float | None:
        return None if self.workers is None else self.seconds * self.workers / HOUR_SECONDS


def own_failures(life: Life) -> list[tuple[Failure, Lane]]:
    """Return the failures that did not follow from another's, the oldest first."""
    found = [(failure, lane) for lane in life.all_lanes for failure in lane.failures if not failure.follows]
    return sorted(found, key=lambda pair: pair[0].at)


def outages_of(life: Life) -> list[Outage]:
    """Return the outages, the oldest first, as far back as the job's history goes.

    Those of replica groups are each a group's own: the others train meanwhile.
    """
    if not life.group_workers:
        return _outages(life.states, own_failures(life), lambda at: _members_at(life, at))
    found = [
        outage
        for lane in life.all_lanes
        for outage in _outages(
            lane.spans,
            [(failure, lane) for failure in lane.failures if not failure.follows],
            lambda _: life.group_workers,
        )
    ]
    return sorted(found, key=lambda outage: outage.begin)


def outages_by_failure(life: Life) -> dict[tuple[Failure, Lane], Outage]:
    """Return the outages by the failure that each began with."""
    return {outage.failures[0]: outage for outage in outages_of(life) if outage.failures}


def _outages(
    states: Sequence[Span],
    failures: Sequence[tuple[Failure, Lane]],
    workers_at: Callable[[float], int | None],
) -> list[Outage]:
    """
    Args:
        failures: the oldest first.
    """
    waiting, found = deque(failures), []
    for begin, end in lost_spans(states, [failure.at for failure, _ in failures]):
        while waiting and waiting[0][0].at < begin - LEEWAY_SECONDS:
            waiting.popleft()
        within = []
        while waiting and waiting[0][0].at < end:
            within.append(waiting.popleft())
        found.append(Outage(begin, end, workers_at(begin), tuple(within)))
    return found


def lost_spans(states: Sequence[Span], failed_at: Sequence[float]) -> list[tuple[float, float]]:
    """Return begins and ends of the times in which failures kept the job from training.

    A Pod that is deleted with time to save changes the world in good order, and ends late: the job is Forming
    or Pending meanwhile, not Recovering. That counts if a failure lies in it and the job has trained before.
    """
    has_trained = False
    found: list[tuple[float, float]] = []
    for trains, group in groupby(states, lambda span: span.state == JobState.TRAINING):
        spans = list(group)
        begin, end = spans[0].begin, spans[-1].end
        is_struck = has_trained and any(begin - LEEWAY_SECONDS <= at <= end for at in failed_at)
        for span in spans:
            if span.state not in LOST and not (is_struck and span.state in STRUCK):
                continue
            if found and found[-1][1] == span.begin:
                found[-1] = (found[-1][0], span.end)
            else:
                found.append((span.begin, span.end))
        has_trained = has_trained or trains
    return found


def _members_at(life: Life, at: float) -> int | None:
    begun = [each for each in life.rounds if each.at < at]
    return None if not begun or begun[-1].members.endswith("…") else len(members_of(begun[-1].members))


def total_hours(outages: Sequence[Outage]) -> float | None:
    """Return the worker-hours of all; None if those of one are not known."""
    hours = [each.worker_hours for each in outages if each.worker_hours is not None]
    return sum(hours) if len(hours) == len(outages) else None


def hours_line(hours: float) -> str:
    return f"{significant(hours)} worker-hours" if hours >= 0.001 else "less than 0.001 worker-hours"


def verdict(life: Life) -> str:
    """Say in a sentence how the job is, what failures cost, and which was the last."""
    failed = own_failures(life)
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
    failure, lane = failed[-1]
    which = "It was" if len(failed) == 1 else "The last was"
    text = f": {_cut(failure.text)}" if _cut(failure.text) else ""
    last = f"{which} on {lane.title}, after {duration(failure.at)} ({failure.what}){text}."
    return f"{head}; {cost_line(life)}. {last}"


def cost_line(life: Life) -> str:
    """Say how much time the failures took, and whose; empty without any."""
    failed = own_failures(life)
    if not failed:
        return ""
    lost = loss(sum(outage.seconds for outage in outages_of(life)))
    again = f" and {life.redone} trained again" if life.redone else ""
    line = f"{counted(len(failed), 'failure')} cost"
    if not life.group_workers:
        return f"{line} {lost}{again}"
    stopped = sum(end - begin for begin, end in lost_spans(life.states, [each.at for each, _ in failed]))
    others = f"nobody trained for {loss(stopped)} of it" if stopped else "the other groups trained on"
    in_all = " in all" if len(failed) > 1 else ""
    return f"{line} {lost} of one group's time{in_all}{again}; {others}"


def _cut(text: str) -> str:
    return shortened(plain(text).rstrip("."), MOST_CHARACTERS)
