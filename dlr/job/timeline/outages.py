"""What each failure that a job's history still has cost: the time until it trained again. Pure.

What all failures cost is in the verdict (`dlr/job/verdict.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dlr.job.failures import SAME_MOMENT
from dlr.job.timeline.blame import Failure
from dlr.job.timeline.episodes import Span
from dlr.job.timeline.life import Lane, Life
from reconcilers.goodput.goodput import AFTER_A_FAILURE

LEEWAY_SECONDS = SAME_MOMENT.total_seconds()


@dataclass(frozen=True)
class Outage:
    """The time from a failure until training went on, or up to now."""

    begin: float
    """Seconds since the job's submission, as in a `Life`."""
    end: float
    failures: tuple[tuple[Failure, Lane], ...]
    """Failures of that time that did not follow from others; the first one began it."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def own_failures(life: Life) -> list[tuple[Failure, Lane]]:
    """Return the failures that did not follow from another's, the oldest first."""
    found = [(failure, lane) for lane in life.all_lanes for failure in lane.failures if not failure.follows]
    return sorted(found, key=lambda pair: pair[0].at)


def outages_of(life: Life) -> list[Outage]:
    """Return the outages, the oldest first, as far back as the job's history goes.

    Those of replica groups are each a group's own: the others train meanwhile.
    """
    if not life.group_workers:
        return _outages(life.states, own_failures(life))
    found = [
        outage
        for lane in life.all_lanes
        for outage in _outages(
            lane.spans, [(failure, lane) for failure in lane.failures if not failure.follows]
        )
    ]
    return sorted(found, key=lambda outage: outage.begin)


def outages_by_failure(life: Life) -> dict[tuple[Failure, Lane], Outage]:
    """Return the outages by the failure that each began with."""
    return {outage.failures[0]: outage for outage in outages_of(life) if outage.failures}


def _outages(states: Sequence[Span], failures: Sequence[tuple[Failure, Lane]]) -> list[Outage]:
    """
    Args:
        failures: the oldest first.
    """
    waiting, found = deque(failures), []
    for begin, end in lost_spans(states):
        while waiting and waiting[0][0].at < begin - LEEWAY_SECONDS:
            waiting.popleft()
        within = []
        while waiting and waiting[0][0].at < end:
            within.append(waiting.popleft())
        found.append(Outage(begin, end, tuple(within)))
    return found


def lost_spans(states: Sequence[Span]) -> list[tuple[float, float]]:
    """Return begins and ends of the times in which failures kept the job from training."""
    found: list[tuple[float, float]] = []
    for span in states:
        if span.state not in AFTER_A_FAILURE:
            continue
        if found and found[-1][1] == span.begin:
            found[-1] = (found[-1][0], span.end)
        else:
            found.append((span.begin, span.end))
    return found
