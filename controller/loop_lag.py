"""How late the event loop is: the time in which answers lie there while our own code computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller import clock

TICK_SECONDS = 0.1


class LoopLag:
    """A timer that notes how much too late the loop gets round to it; it runs while somebody measures."""

    def __init__(self) -> None:
        self._measuring = 0
        self._due: float | None = None
        self._late_seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[Callable[[], float]]:
        """What it gives tells, in seconds, by how much the loop has been late since the block began."""
        self._measuring += 1
        if self._due is None:
            self._set_timer()
        before = self._total()
        try:
            yield lambda: self._total() - before
        finally:
            self._measuring -= 1

    def _total(self) -> float:
        """With what a timer that is overdue at this moment will note."""
        overdue = 0.0 if self._due is None else max(0.0, clock.monotonic() - self._due)
        return self._late_seconds + overdue

    def _set_timer(self) -> None:
        self._due = clock.monotonic() + TICK_SECONDS
        asyncio.get_running_loop().call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._late_seconds = self._total()
        self._due = None
        if self._measuring:
            self._set_timer()
