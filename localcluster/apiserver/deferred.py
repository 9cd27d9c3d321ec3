"""Work that follows from a change but must not happen inside it: the beat of the built-in controllers.

A controller's step is an ordinary function of the store's present state. Steps are queued by observers of
the store, each at most once at a time, and run soon after, a few at a time so that requests get their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

log = logging.getLogger(__name__)

BATCH = 50


class Deferred:
    """A queue of steps."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Callable[..., None], tuple[Hashable, ...]], None] = {}
        self._scheduled = False

    def add(self, step: Callable[..., None], *arguments: Hashable) -> None:
        """Run `step(*arguments)` soon, once, however often it is added until then."""
        self._waiting[(step, arguments)] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(min(BATCH, len(self._waiting))):
            step, arguments = next(iter(self._waiting))
            del self._waiting[(step, arguments)]
            try:
                step(*arguments)
            except Exception:
                # The step runs again with the next change of what it looks at.
                log.exception("step=%s arguments=%s failed", step.__qualname__, arguments)
        if self._waiting:
            self._schedule()
