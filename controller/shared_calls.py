"""One call for all who want the same at once: the first makes it, and the others wait for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedCalls(Generic[T]):
    """The calls under way, by key."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    async def ask(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return or raise what the call under way for this key gives; make it if there is none.

        It goes on if a waiter is cancelled.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(call())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, done: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not done.cancelled():
            done.exception()  # each waiter has raised it; all of them may have been cancelled
