"""The stretches of a job's life, as `status.history` has them, and their clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dlr.job.wording import parse_time
from dlr.kube.api import JSON

SHORTEST_LIFE_SECONDS = 1e-3


@dataclass(frozen=True)
class Clock:
    """Seconds since submission, up to now or to the job's end."""

    submitted: datetime
    ended: datetime

    @property
    def end(self) -> float:
        return max((self.ended - self.submitted).total_seconds(), SHORTEST_LIFE_SECONDS)

    def at(self, moment: datetime) -> float:
        """Never outside of the job's life: what came later is not drawn."""
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
class Episode:
    span: Span
    round: int
    members: frozenset[int]
    members_text: str
    reason: str
    failure: JSON | None = None
    """The failure that began it, as the status has it."""

    def has(self, index: int) -> bool:
        """Whether that worker had a place in the world; of a cut-off list, all that come after it had."""
        cut = self.members_text.endswith("…")
        return index in self.members or (cut and index > max(self.members, default=0))


def episodes_of(history: Sequence[JSON], clock: Clock) -> list[Episode]:
    """Each lasts until the next."""
    begins = [clock.read(entry["since"]) or 0.0 for entry in history]
    ends = [*begins[1:], *([clock.end] if begins else ())]
    return [
        Episode(
            Span(entry["state"], begin, max(begin, end), entry.get("reason") or ""),
            entry.get("round") or 0,
            members_of(entry.get("members") or ""),
            entry.get("members") or "",
            entry.get("reason") or "",
            entry.get("failure"),
        )
        for entry, begin, end in zip(history, begins, ends, strict=True)
    ]


def members_of(ranges: str) -> frozenset[int]:
    """`0-2,5` as {0, 1, 2, 5}; of a text that was cut off, what is left of it."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
