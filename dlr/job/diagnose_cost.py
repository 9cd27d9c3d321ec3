"""What failures cost a job: the time until it trained again, and that time of all of its workers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dlr.job.timeline.blame import Failure
from dlr.job.timeline.episodes import members_of
from dlr.job.timeline.life import Lane, Life
from dlr.job.timeline.verdict import lost_spans
from dlr.job.wording import significant

LEEWAY_SECONDS = 5.0
"""A failure's time and the end of its round are told by two parties."""
HOUR_SECONDS = 3_600.0


@dataclass(frozen=True)
class Outage:
    """The time from a failure until training went on, or up to now."""

    begin: float
    """Seconds since the job's submission, as in a `Life`."""
    end: float
    workers: int | None
    """That had a place in the world; None if that is not known."""
    failures: tuple[tuple[Failure, Lane], ...]
    """That fall into it and did not follow from others; the first one began it."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def worker_hours(self) -> float | None:
        return None if self.workers is None else self.seconds * self.workers / HOUR_SECONDS


def own_failures(life: Life) -> list[tuple[Failure, Lane]]:
    """Return the failures that did not follow from another's, the oldest first."""
    found = [(failure, lane) for lane in life.lanes for failure in lane.failures if not failure.follows]
    return sorted(found, key=lambda pair: pair[0].at)


def outages_of(life: Life) -> list[Outage]:
    """The oldest first, as far back as the job's history goes."""
    failures = own_failures(life)
    spans = lost_spans(life.states, [failure.at for failure, _ in failures])
    failed = deque(failures)
    found = []
    for begin, end in spans:
        while failed and failed[0][0].at < begin - LEEWAY_SECONDS:
            failed.popleft()
        within = []
        while failed and failed[0][0].at < end:
            within.append(failed.popleft())
        found.append(Outage(begin, end, _members_at(life, begin), tuple(within)))
    return found


def _members_at(life: Life, at: float) -> int | None:
    begun = [each for each in life.rounds if each.at < at]
    return None if not begun or begun[-1].members.endswith("…") else len(members_of(begun[-1].members))


def hours_line(hours: float) -> str:
    return f"{significant(hours)} worker-hours" if hours >= 0.001 else "less than 0.001 worker-hours"


def total_hours(outages: Sequence[Outage]) -> float | None:
    """None if of one it is not known."""
    hours = [outage.worker_hours for outage in outages]
    return None if any(each is None for each in hours) else sum(each for each in hours if each is not None)
