"""How much of this process the objects of one namespace may take: memory, and time on the event loop. Pure.

Memory is counted in the units of `controller/shape.py`. A namespace that has used up its share keeps what is
there, and its further objects cannot be read; those of others are read as ever. Where the shares of all
together are more than this process has, a namespace gets no more than an equal part.

Time counts for large texts alone, such as an object of a megabyte of which a label changes all the time: they
wait until the namespace has time again, and of several about one object the newest is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY_UNITS = 4_000_000
"""Units of one namespace: some 300 MB."""
ALL_UNITS = 6_000_000
"""Units of all namespaces together, or of one if that is more: beyond it an equal part is the limit."""
LARGE_UNITS = 1_500
"""Units of a text that costs time; an agent's report has fewer."""
SECONDS_A_UNIT = 5e-7
BURST_SECONDS = 2.0
"""Time that a namespace may use at once."""
TIME_SHARE = 0.2
"""Part of the event loop's time that a namespace may use in the long run."""


@dataclass
class Shares:
    """What each namespace has used."""

    memory_units: int = MEMORY_UNITS
    all_units: int = ALL_UNITS
    used: dict[str, int] = field(default_factory=dict)
    """Units of memory, by namespace."""
    total: int = 0
    _debts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds of the event loop that a namespace has used and not been given yet, and when that was so."""

    def take(self, namespace: str, before: int, after: int) -> bool:
        """Account for an object that takes so many units instead of so many; False if there is no room."""
        if after > before and not self.has_room(namespace, after - before):
            return False
        used = self.used.get(namespace, 0) + after - before
        self.total += after - before
        if used:
            self.used[namespace] = used
        else:
            self.used.pop(namespace, None)
        return True

    def limit(self, namespace: str, more: int = 0) -> int:
        """Units that the namespace may use when all use so many more than now."""
        all_units = max(self.all_units, self.memory_units)
        if self.total + more <= all_units:
            return self.memory_units
        return min(self.memory_units, all_units // len({*self.used, namespace}))

    def has_room(self, namespace: str, more: int) -> bool:
        """Whether the namespace may use so many units more."""
        return self.used.get(namespace, 0) + more <= self.limit(namespace, more)

    def spend(self, namespace: str, text_units: int, now: float) -> None:
        """Account for the reading of a large text."""
        left = self._left(namespace, now) + text_units * SECONDS_A_UNIT
        self._debts[namespace] = left, now

    def wait_seconds(self, namespace: str, now: float) -> float:
        """Time until the next large text may be read."""
        left = self._left(namespace, now)
        if left == 0.0:
            self._debts.pop(namespace, None)
        return max(0.0, left - BURST_SECONDS) / TIME_SHARE

    def _left(self, namespace: str, now: float) -> float:
        debt, at = self._debts.get(namespace, (0.0, now))
        return max(0.0, debt - (now - at) * TIME_SHARE)
