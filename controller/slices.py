"""Long work in slices, or in a thread, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from controller import clock
from controller.garbage import collect_lately_made

P = ParamSpec("P")
T = TypeVar("T")

SLICE_SECONDS = 0.01
"""Longest continuous work before others get a turn: probes, answers, other reconcilers."""
LARGE = 200
"""Number of objects from which a decision is computed in a thread."""

_LET_GO_AT_ONCE = 100


class Slices:
    """Work in slices: `await slices.pause()` between two steps lets others run when a slice is over."""

    def __init__(self) -> None:
        self._turns = _turns.setdefault(asyncio.get_running_loop(), _Turns())

    async def pause(self) -> None:
        if clock.monotonic() - self._turns.began >= SLICE_SECONDS:
            await self._turns.next()


async def let_go(objects: list[Any]) -> None:
    """Empty the list in slices. Freeing thousands of models at once takes up to a tenth of a second, in which
    no other thread runs."""
    slices = Slices()
    del objects[-_LET_GO_AT_ONCE:]
    while objects:
        await slices.pause()
        del objects[-_LET_GO_AT_ONCE:]


async def computed(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a pure function, computed in a thread if `size`, its number of objects, is
    large."""
    if size < LARGE:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


class _Turns:
    """Turns of all sliced work on one event loop, which polls its sockets after each."""

    def __init__(self) -> None:
        self.began = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._give, loop)
        await mine
        self.began = clock.monotonic()

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        collect_lately_made()
        mine = self._waiting.popleft()
        if not mine.done():  # otherwise its task was cancelled
            mine.set_result(None)
        if self._waiting:
            loop.call_soon(self._give, loop)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()
