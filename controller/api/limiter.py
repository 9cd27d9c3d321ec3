"""Limit of concurrent requests: as many as the API server answers promptly.

Additive increase, multiplicative decrease, as in TCP: prompt answers while the limit is reached raise it
by one per round trip; a late answer, or a sign of overload (429, 5xx, no answer), halves it once for all
requests sent before. Requests that admission webhooks may delay are never late. Flows take turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controller import clock
from controller.api.fairness import FairQueue, current_flow
from controller.errors import Unavailable, WebhookUnavailable

log = logging.getLogger(__name__)

MOST = 64
LEAST = 4
SLOW_SECONDS = 1.0
"""Kubernetes' target for 99 % of requests for single objects (its scalability SLOs)."""


class RequestLimiter:
    """Limiter of concurrent requests: `async with limiter.slot():` around each."""

    def __init__(self, *, most: int = MOST, least: int = LEAST) -> None:
        self._most = float(most)
        self._least = float(least)
        self._limit = self._most
        self._in_flight = 0
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._lowered_at = 0.0

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @asynccontextmanager
    async def slot(self, *, may_be_late: bool = False) -> AsyncIterator[None]:
        """Wait for a turn; the block is the request, and its error is its outcome.

        A request that `may_be_late` lowers the limit only by a sign of overload, not by its duration.
        """
        await self._enter()
        sent = clock.monotonic()
        try:
            yield
        except WebhookUnavailable:  # which may be of one namespace, and says nothing of the server
            self._judge(sent, may_be_late)
            raise
        except Unavailable as error:
            if error.status or error.processed:
                self._lower(sent)
            raise
        except asyncio.CancelledError:
            raise
        except Exception:
            self._judge(sent, may_be_late)
            raise
        else:
            self._judge(sent, may_be_late)
        finally:
            self._in_flight -= 1
            self._admit()

    async def _enter(self) -> None:
        if self._in_flight < self.limit and not self._waiting:
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(current_flow.get(), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted, but cancelled before it could continue
                self._in_flight -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._in_flight < self.limit:
            turn = self._waiting.pop()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    def _judge(self, sent: float, may_be_late: bool) -> None:
        """Adjust the limit to one answer, unless a webhook may have delayed it."""
        if clock.monotonic() - sent > SLOW_SECONDS:
            if not may_be_late:
                self._lower(sent)
        elif self._in_flight >= self.limit:
            self._limit = min(self._limit + 1 / self._limit, self._most)

    def _lower(self, sent: float) -> None:
        if sent < self._lowered_at or self._limit <= self._least:
            return
        self._limit = max(self._limit / 2, self._least)
        self._lowered_at = clock.monotonic()
        log.info("API server is slow or overloaded, requests at once limit=%d", self.limit)
