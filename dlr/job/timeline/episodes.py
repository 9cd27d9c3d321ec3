"""Stretches and failures in a job's `status.history`, and their clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, takewhile

from controller.wording import counted, first_line
from crds.elasticworker import ExitClass
from dlr.job.wording import EPOCH, parse_time
from dlr.kube.api import JSON
from reconcilers.goodput.goodput import AFTER_A_FAILURE

SHORTEST_LIFE_SECONDS = 1e-3


@dataclass(frozen=True)
class JobClock:
    """Seconds since submission, up to now or to the job's end."""

    submitted: datetime
    ended: datetime

    @property
    def end(self) -> float:
        return max((self.ended - self.submitted).total_seconds(), SHORTEST_LIFE_SECONDS)

    def at(self, moment: datetime) -> float:
        """Return the seconds at a moment, limited to the job's life."""
        return min(max(0.0, (moment - self.submitted).total_seconds()), self.end)

    def read(self, text: str | None) -> float | None:
        moment = parse_time(text)
        return None if moment is None else self.at(moment)


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state."""

    state: str
    begin: float
    end: float
    text: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Stretch:
    span: Span
    round: int
    members: frozenset[int]
    members_text: str
    reason: str
    failure: JSON | None = None
    """Failure at its beginning, from the status."""
    lives: str = ""
    """How many training processes lived on into its round, such as `3 of 4 processes`; empty without any."""

    def has(self, index: int) -> bool:
        """Whether that worker was in the world; if the list was cut off, workers after its end count, too."""
        cut = self.members_text.endswith("…")
        return index in self.members or (cut and index > max(self.members, default=0))


def episodes_of(history: Sequence[JSON], clock: JobClock) -> list[Stretch]:
    """Return the stretches of a history, each of which lasts until the next."""
    begins = [clock.read(entry["since"]) or 0.0 for entry in history]
    ends = [*begins[1:], *([clock.end] if begins else ())]
    return [
        Stretch(
            Span(entry["state"], begin, max(begin, end), entry.get("reason") or ""),
            entry.get("round") or 0,
            members_of(entry.get("members") or ""),
            entry.get("members") or "",
            entry.get("reason") or "",
            entry.get("failure"),
            _lives(entry),
        )
        for entry, begin, end in zip(history, begins, ends, strict=True)
    ]


def _lives(entry: JSON) -> str:
    lived, processes = entry.get("livedOn") or 0, entry.get("processes") or 0
    return f"{lived} of {counted(processes, 'process', 'processes')}" if lived else ""


@dataclass(frozen=True)
class PastFailure:
    """A failure of a job, by the judgement of its controller."""

    at: float
    worker: str
    """Name of the ElasticWorker that failed first."""
    who: str
    """Name of the worker, or of its replica group, without the job's name."""
    what: str
    """Exit class."""
    text: str
    outage: Span | None = None
    """Time until training resumed; None if the job had not trained since the previous failure."""
    lives: str = ""
    """How many training processes lived on, such as `3 of 4 processes`; empty without any."""

    @property
    def survivors(self) -> str:
        """`lives` as a clause."""
        return f"{self.lives} lived on" if self.lives else ""


def failures_in(job: JSON, episodes: Sequence[Stretch], clock: JobClock) -> list[PastFailure]:
    """Return the failures in a job's history, and its last failure, the oldest first.

    A failure that followed from a peer's is left out if the outage has the peer's, too.
    """
    found: dict[tuple[str, str], PastFailure] = {}
    followed: set[tuple[str, str]] = set()
    for is_down, stretch in groupby(episodes, key=lambda episode: episode.span.state in AFTER_A_FAILURE):
        if not is_down:
            continue
        together = [*stretch]
        outage: Span | None = Span("", together[0].span.begin, together[-1].span.end, "")
        failures = [(number, each.failure) for number, each in enumerate(together) if each.failure]
        causes = {each["exitClass"] for _, each in failures} - {ExitClass.UNKNOWN}
        for number, each in failures:
            key = each["worker"], each["time"]
            if causes and each["exitClass"] == ExitClass.UNKNOWN:
                followed.add(key)
            elif key not in found:
                failure = _failure(job, each, clock, outage)
                found[key] = replace(failure, lives=_lives_after(together, number))
                outage = None
    last = (job.get("status") or {}).get("lastFailure")
    if last and (last["worker"], last["time"]) not in found.keys() | followed:
        found[last["worker"], last["time"]] = _failure(job, last, clock, None)
    return sorted(found.values(), key=lambda failure: failure.at)


def _lives_after(stretches: Sequence[Stretch], number: int) -> str:
    """Return the processes that lived through the failure of one stretch."""
    later = takewhile(lambda stretch: not stretch.failure, stretches[number + 1 :])
    return next((each.lives for each in (stretches[number], *later) if each.lives), "")


def _failure(job: JSON, failure: JSON, clock: JobClock, outage: Span | None) -> PastFailure:
    worker = str(failure["worker"])
    who = worker.removeprefix(f"{job['metadata']['name']}-")
    at = clock.at(parse_time(failure["time"]) or EPOCH)
    return PastFailure(at, worker, who, failure["exitClass"], first_line(failure.get("message")), outage)


def members_of(ranges: str) -> frozenset[int]:
    """Parse `0-2,5` into {0, 1, 2, 5}; a text that was cut off yields its readable part."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
