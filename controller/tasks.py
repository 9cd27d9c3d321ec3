"""Background tasks: groups, an event loop in its own thread, and calls shared by several callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Background:
    """Group of background tasks, and races against their failure: if one fails, every race raises its
    error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Background:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel(*self._tasks)
        self._failed.cancel()

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    async def cancel(self, *tasks: asyncio.Task[None]) -> None:
        """Cancel tasks, newest first, and wait for each to end."""
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])

    async def race(self, awaitable: Awaitable[Any], stop: asyncio.Event | None = None) -> bool:
        """Wait for `awaitable`; return False if `stop` is set first. Raises if a task fails first."""
        main: asyncio.Future[Any] = asyncio.ensure_future(awaitable)
        stopped: asyncio.Future[Any] = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({main, stopped, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            if main.done():
                main.result()
                return True
            return False
        finally:
            main.cancel()
            stopped.cancel()
            await asyncio.wait({main, stopped})
            if not main.cancelled():
                main.exception()  # mark as retrieved; the first error is raised

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._failed.done():
            return
        error = task.exception()
        if error is not None:
            self._failed.set_exception(error)
            self._failed.exception()  # mark as retrieved, even without a race


class LoopThread:
    """Event loop in its own thread, which runs inside the `async with` block."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._is_running = threading.Event()

    async def __aenter__(self) -> LoopThread:
        self._thread.start()
        await asyncio.to_thread(self._is_running.wait)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the loop, which cancels its coroutines."""
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on that loop from the caller's. Cancelling this cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._is_running.set()
        await self._stop.wait()


class SharedCalls(Generic[T]):
    """Calls in progress, shared by their callers, by key."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    async def ask(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return or raise the result of the call in progress for this key; start it if there is none.

        The call continues if a waiter is cancelled.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(call())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, done: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not done.cancelled():
            done.exception()  # mark as retrieved; all waiters may have been cancelled
