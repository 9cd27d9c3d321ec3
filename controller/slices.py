"""Long work in slices, so that the event loop has a turn now and then."""

from __future__ import annotations

import asyncio
import time

from controller.garbage import collect_lately_made

SLICE_SECONDS = 0.01
"""After so much work at a stretch, others have a turn: probes, answers, other reconcilers."""


class Slices:
    """`await slices.pause()` between any two pieces of work: it lets others run when a slice is over."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def pause(self) -> None:
        if time.perf_counter() - self._began >= SLICE_SECONDS:
            collect_lately_made()
            await asyncio.sleep(0)
            self._began = time.perf_counter()
