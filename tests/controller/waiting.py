"""Coroutines beside a test, and waiting for what they do."""

import asyncio
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def background(coroutine):
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def eventually(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - it is any condition
            await asyncio.sleep(0.01)
