"""An event loop in a thread of its own, for what has to go on while the main one computes.

Leadership is that: a look at a very large job may keep the main event loop busy for longer than the Lease may
go without renewal, and would so be taken from a leader that is well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines between `async with` and its end."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._is_running = threading.Event()

    async def __aenter__(self) -> LoopThread:
        self._thread.start()
        await asyncio.to_thread(self._is_running.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancels what still runs there."""
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result or error, awaited from the caller's event loop. To cancel this cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._is_running.set()
        await self._stop.wait()
