"""Shares of a namespace in this process's memory and event loop time. Pure.

Memory is counted in the units of `controller/shape.py`. A namespace that has used up its share keeps its
objects, but further ones are unreadable; other namespaces are not affected. If the shares of all
namespaces exceed this process's memory, each namespace gets at most an equal part.

Time is counted only for large texts, such as an object of a megabyte with a label that changes constantly.
They wait until the namespace has time again, and only the newest of several texts about one object is
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY_UNITS = 4_000_000
"""Memory units of one namespace: about 300 MB."""
ALL_UNITS = 6_000_000
"""Memory units of all namespaces together, or of one if that is more; beyond it, each gets an equal part."""
LARGE_UNITS = 1_500
"""Units from which reading a text counts as time; an agent's report has fewer."""
SECONDS_A_UNIT = 5e-7
BURST_SECONDS = 2.0
"""Seconds that a namespace may use at once."""
TIME_SHARE = 0.2
"""Share of the event loop's time that a namespace may use in the long run."""


@dataclass
class Shares:
    """Usage of each namespace."""

    memory_units: int = MEMORY_UNITS
    all_units: int = ALL_UNITS
    used: dict[str, int] = field(default_factory=dict)
    """Memory units in use, by namespace."""
    total: int = 0
    _debts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds of the event loop that a namespace has used in excess, and the time of that count."""

    def take(self, namespace: str, before: int, after: int) -> bool:
        """Account for an object that grows from `before` to `after` units; return False if there is no
        room."""
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
        """Return the units that the namespace may use if `more` units are added in total."""
        all_units = max(self.all_units, self.memory_units)
        if self.total + more <= all_units:
            return self.memory_units
        return min(self.memory_units, all_units // len({*self.used, namespace}))

    def has_room(self, namespace: str, more: int) -> bool:
        """Return whether the namespace may use `more` units."""
        return self.used.get(namespace, 0) + more <= self.limit(namespace, more)

    def spend(self, namespace: str, text_units: int, now: float) -> None:
        """Account for the reading of a large text."""
        left = self._left(namespace, now) + text_units * SECONDS_A_UNIT
        self._debts[namespace] = left, now

    def wait_seconds(self, namespace: str, now: float) -> float:
        """Return the seconds until the next large text may be read."""
        left = self._left(namespace, now)
        if left == 0.0:
            self._debts.pop(namespace, None)
        return max(0.0, left - BURST_SECONDS) / TIME_SHARE

    def _left(self, namespace: str, now: float) -> float:
        debt, at = self._debts.get(namespace, (0.0, now))
        return max(0.0, debt - (now - at) * TIME_SHARE)
