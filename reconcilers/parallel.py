"""Many writes side by side, but not too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

PARALLEL_WRITES = 16


async def in_parallel(calls: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Run them, a bounded number at once; the first error is raised when all have ended."""
    gate = asyncio.Semaphore(PARALLEL_WRITES)

    async def gated(call: Coroutine[Any, Any, object]) -> None:
        async with gate:
            await call

    results = await asyncio.gather(*(gated(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
