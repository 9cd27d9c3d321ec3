"""Time that a reconcile has waited for the API server; the rest is its own computing."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar


class ApiWait:
    """Wait time of a task: `with wait:` around each request. Concurrent requests count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._under_way = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if self._under_way == 0:
            self._since = asyncio.get_running_loop().time()
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self.seconds += asyncio.get_running_loop().time() - self._since


current_wait: ContextVar[ApiWait] = ContextVar("current_wait", default=ApiWait())  # noqa: B039 (no task reads it)
"""Wait time of the running task and of those that it starts."""
