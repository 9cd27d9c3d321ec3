"""Many writes side by side, but not too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

PARALLEL_WRITES = 16


async def in_parallel(calls: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run them, a bounded number at once; the first error is raised when all have ended.

    A generator's calls are made as they are begun: ten thousand tasks at once would block the event loop.
    """
    waiting, errors = iter(calls), []

    async def work_off() -> None:
        for call in waiting:
            try:
                await call
            except Exception as error:  # the others are to be done all the same
                errors.append(error)

    await asyncio.gather(*(work_off() for _ in range(PARALLEL_WRITES)))
    if errors:
        raise errors[0]
