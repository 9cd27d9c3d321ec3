"""The metrics as text, rendered at most once a second, however many ask."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from controller import clock

PERIOD_SECONDS = 1.0
MOST_FORMATS = 8
"""Renderings that are remembered, each in another format."""


@dataclass(frozen=True)
class Rendering:
    body: bytes
    content_type: str
    rendered_at: float


class Renderer:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._last: dict[str, Rendering] = {}
        """By format, the oldest first."""
        self._lock = asyncio.Lock()

    async def of(self, accept: str) -> Rendering:
        """The metrics in the format that a request accepts, not older than a second.

        A thread renders: ten thousand workers take a second, and hold the loop up for milliseconds each time.
        """
        encode, content_type = choose_encoder(accept)
        async with self._lock:
            known = self._last.get(content_type)
            newest = max((each.rendered_at for each in self._last.values()), default=None)
            if known is not None and clock.monotonic() - known.rendered_at < PERIOD_SECONDS:
                return known
            if newest is not None and (left := newest + PERIOD_SECONDS - clock.monotonic()) > 0:
                await asyncio.sleep(left)
            body = await asyncio.to_thread(encode, self._registry)
            self._last.pop(content_type, None)
            self._last[content_type] = Rendering(body, content_type, clock.monotonic())
            while len(self._last) > MOST_FORMATS:
                del self._last[next(iter(self._last))]
            return self._last[content_type]
