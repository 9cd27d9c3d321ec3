"""Leader election over a Lease: asks, writes and keeps the time for the decisions in election.py.

It cannot split when the API server hangs in the middle of a call: `is_leader` is a comparison with a
clock that runs on regardless, `hold` is cancelled at the deadline whatever it waits for, and the client
of the controllers asks `check` before each write leaves.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import Awaitable
from datetime import UTC, datetime

from controller import clock, election
from controller.client import Client
from controller.election import ElectionTiming, Move, Observation
from controller.errors import AlreadyExists, ClientError, Conflict, NotFound
from controller.resources import LEASES, Object

log = logging.getLogger(__name__)

_JITTER = 0.2


class LeadershipLost(Exception):
    """This process may no longer act; it should end and be started again."""


class NotLeader(ClientError):
    """A write was held back because this process does not lead (any more)."""


def unique_identity() -> str:
    """Never the same twice: nobody knows whether the predecessor of a restarted process is dead."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Elector:
    """One candidate. `acquire`, then `hold` beside the work, then `release` when the work has ended."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str | None = None,
        timing: ElectionTiming | None = None,
    ) -> None:
        self.identity = identity or unique_identity()
        self.namespace = namespace
        self.name = name
        self._client = client
        self._timing = timing or ElectionTiming()
        self._observation: Observation | None = None
        self._must_look = True
        self._leading = False
        self._leads_until = 0.0
        self._last_error: ClientError | None = None

    @property
    def is_leader(self) -> bool:
        return self._leading and clock.monotonic() < self._leads_until

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty if nobody did."""
        return self._observation.last_holder if self._observation else ""

    def check(self) -> None:
        """The guard for `Client.guarded`."""
        if not self.is_leader:
            raise NotLeader(f"{self.identity} does not hold the lease {self.namespace}/{self.name}")

    async def acquire(self) -> None:
        """Until this process leads. Tries for ever: being second is the normal state of a candidate."""
        log.info("waiting for leadership lease=%s/%s identity=%s", self.namespace, self.name, self.identity)
        while not self.is_leader:
            await self._try()
            if not self.is_leader:
                await asyncio.sleep(self._timing.retry_period_seconds * (1 + random.random() * _JITTER))
        log.info("became leader lease=%s/%s identity=%s", self.namespace, self.name, self.identity)

    async def hold(self) -> None:
        """Renews; raises LeadershipLost at the moment leading must stop."""
        try:
            async with asyncio.timeout_at(self._leads_until) as scope:
                while True:
                    await asyncio.sleep(self._timing.retry_period_seconds)
                    await self._try()
                    if not self._leading:
                        raise LeadershipLost(
                            f"the lease {self.namespace}/{self.name} was taken by {self.holder or 'nobody'}"
                        )
                    scope.reschedule(self._leads_until)
        except TimeoutError as error:
            self._leading = False
            raise LeadershipLost(
                f"the lease {self.namespace}/{self.name} could not be renewed within "
                f"{self._timing.renew_deadline_seconds:g} s: {self._last_error or 'the API server hangs'}"
            ) from error

    async def release(self) -> None:
        """Lets another take the Lease at once. Call only after everything that needed it has ended."""
        if not self._leading:
            return
        self._leading = False
        try:
            if self._must_look:
                await self._look()
            record = self._observation.record if self._observation else None
            if record is None or record.holder != self.identity:
                return
            now = datetime.now(UTC)
            lease = election.released(record, namespace=self.namespace, name=self.name, wall=now)
            await self._in_time(self._client.replace(LEASES, lease))
        except (ClientError, TimeoutError) as error:
            log.warning(
                "lease not released, it will expire lease=%s/%s error=%s", self.namespace, self.name, error
            )

    async def _try(self) -> None:
        """One attempt to get or keep the Lease; whatever goes wrong is known afterwards by the clock."""
        try:
            if self._must_look:
                await self._look()
            try:
                await self._claim()
            except (Conflict, AlreadyExists):
                await self._look()  # at once: if it is another's, leading ends here
            self._last_error = None
        except TimeoutError:
            self._last_error = None
        except ClientError as error:
            self._note(error)

    async def _look(self) -> None:
        self._must_look = True
        try:
            record = election.read(await self._in_time(self._client.get(LEASES, self.name, self.namespace)))
        except NotFound:
            record = None
        self._observation = election.observe(self._observation, record, clock.monotonic())
        self._must_look = False
        if self._leading and self._observation.last_holder != self.identity:
            self._leading = False

    async def _claim(self) -> None:
        assert self._observation is not None
        move = election.decide(self._observation, self.identity, clock.monotonic())
        if move is Move.WAIT:
            self._must_look = True
            return
        lease = election.claim(
            self._observation.record,
            namespace=self.namespace,
            name=self.name,
            identity=self.identity,
            timing=self._timing,
            wall=datetime.now(UTC),
        )
        sent = clock.monotonic()
        self._must_look = True  # until the answer is in hand nobody knows what the Lease says
        if move is Move.CREATE:
            written = await self._in_time(self._client.create(LEASES, lease))
        else:
            written = await self._in_time(self._client.replace(LEASES, lease))
        self._observation = election.observe(self._observation, election.read(written), clock.monotonic())
        self._must_look = False
        self._leading = True
        self._leads_until = sent + self._timing.renew_deadline_seconds

    async def _in_time(self, call: Awaitable[Object]) -> Object:
        async with asyncio.timeout(self._timing.call_timeout_seconds):
            return await call

    def _note(self, error: ClientError) -> None:
        if str(error) != str(self._last_error):
            log.warning("leader election lease=%s/%s error=%s", self.namespace, self.name, error)
        self._last_error = error
