"""Virtual time, as a queue of events."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Happens = Callable[[], None]


class SimulatedClock:
    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Happens]] = []
        self._number = 0

    def after(self, seconds: float, happens: Happens) -> None:
        """Queue an event. Events of the same time run in the order in which they were queued."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + max(seconds, 0.0), self._number, happens))

    def run(self, until: float, before: Callable[[float], None]) -> None:
        """Run all events until a time; `before` gets the seconds before each event, and before the end."""
        while self._queue and self._queue[0][0] <= until:
            time, _, happens = heapq.heappop(self._queue)
            before(time - self.now)
            self.now = time
            happens()
        before(until - self.now)
        self.now = until
