"""How long what is being stopped still has, which a second deletion may shorten."""

from __future__ import annotations

import asyncio
from typing import Any

from controller.clock import monotonic


class Grace:
    """A deadline that others can only bring nearer."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = monotonic() + seconds
        self._shortened = asyncio.Event()

    @property
    def remaining_seconds(self) -> float:
        return max(self._ends_at - monotonic(), 0.0)

    def shorten(self, seconds: float) -> None:
        ends_at = monotonic() + seconds
        if ends_at < self._ends_at:
            self._ends_at = ends_at
            self._shortened.set()

    async def allows(self, awaited: asyncio.Future[Any]) -> bool:
        """Wait; False when the time is over first."""
        while not awaited.done():
            if self.remaining_seconds <= 0:
                return False
            self._shortened.clear()
            nudge = asyncio.ensure_future(self._shortened.wait())
            try:
                await asyncio.wait(
                    {awaited, nudge},
                    timeout=self.remaining_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                nudge.cancel()
        return True
