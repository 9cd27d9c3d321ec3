"""Tries in the background whether the agents of silent workers accept connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller import clock
from reconcilers.observed.reach import Address

DIAL_SECONDS = 0.5
"""Time limit of an attempt. The kernel repeats an unanswered SYN only after a second."""
KEPT_SECONDS = 1.0
"""Age up to which an outcome is valid."""
MOST_AT_ONCE = 64
"""Limit of attempts under way, for all namespaces together."""


class Dials(Protocol):
    def answers(self, namespace: str, host: str, port: int) -> bool | None:
        """Whether the address accepts connections; None until the outcome is there, within DIAL_SECONDS.

        Args:
            namespace: namespace of the worker.
        """


@dataclass(frozen=True)
class _Outcome:
    is_connected: bool
    at: float
    """Time of the outcome, on the monotonic clock."""


class TcpDials:
    """Connects, sends nothing, and closes.

    A namespace may have at most as many attempts under way as remain free, so that it always leaves some to
    others, however many of its workers are silent.
    """

    def __init__(self, monotonic: Callable[[], float] = clock.monotonic) -> None:
        self._monotonic = monotonic
        self._outcomes: dict[Address, _Outcome] = {}
        self._under_way: dict[Address, tuple[str, asyncio.Task[None]]] = {}
        """Attempts under way, each with its namespace."""

    def answers(self, namespace: str, host: str, port: int) -> bool | None:
        """See `Dials`."""
        address, oldest = (host, port), self._monotonic() - KEPT_SECONDS
        self._outcomes = {key: each for key, each in self._outcomes.items() if each.at >= oldest}
        if (outcome := self._outcomes.get(address)) is not None:
            return outcome.is_connected
        if address not in self._under_way and self._has_place(namespace):
            task = asyncio.create_task(self._try(address), name=f"dial {host}:{port}")
            self._under_way[address] = namespace, task
        return None

    def _has_place(self, namespace: str) -> bool:
        own = sum(each == namespace for each, _ in self._under_way.values())
        return own < MOST_AT_ONCE - len(self._under_way)

    async def _try(self, address: Address) -> None:
        try:
            is_connected = await _connects(address)
            self._outcomes[address] = _Outcome(is_connected, self._monotonic())
        finally:
            del self._under_way[address]


async def _connects(address: Address) -> bool:
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
