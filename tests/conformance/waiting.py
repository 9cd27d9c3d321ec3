"""Waiting for what a server does in its own time: bounded, and with the last answer in the failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


PATIENCE_SECONDS = 300.0
"""Time limit for a controller; a real one finds new kinds only every half minute."""


async def eventually(probe: Callable[[], Awaitable[T]], *, until: Callable[[T], bool] = bool) -> T:
    """Ask again, ever more slowly, until the answer satisfies `until`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        answer = await probe()
        if until(answer):
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {PATIENCE_SECONDS:g} s; the last answer was {answer!r}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
