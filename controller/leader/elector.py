"""Leader election over a Lease: asks, writes and keeps the time for the decisions in election.py.

It cannot split when the API server hangs in the middle of a call: `is_leader` is a comparison with a
clock that runs on regardless, `hold` ends at the deadline whatever it waits for, and the client of the
controllers asks `check` before each write leaves. Nor is the Lease lost to a server that is slow: the
answer to a renewal counts from when the renewal was sent, however late it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import socket
import uuid
from datetime import UTC, datetime

from controller import clock
from controller.client import AsyncClient
from controller.errors import AlreadyExists, ApiError, Conflict, NotFound
from controller.leader import election
from controller.leader.election import ElectionTiming, LeaseRecord, Move, Tenure
from controller.resources import LEASES

log = logging.getLogger(__name__)

_JITTER = 0.2
_RELEASES = 3
"""Attempts to give the Lease back that meet a change of it."""


class LeadershipLost(Exception):
    """This process may no longer act; it should end and be started again."""


class NotLeader(ApiError):
    """A write was held back because this process does not lead (any more)."""


def unique_identity() -> str:
    """A new one for each start: writes of the predecessor may still be on their way, as client-go has it."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Elector:
    """One candidate. `acquire`, then `hold` beside the work, then `release` when the work has ended.

    An attempt to get or keep the Lease is a task of its own. One that is not answered goes on until its
    answer would be of no use, and another begins beside it.
    """

    def __init__(
        self,
        client: AsyncClient,
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
        self._tenure = Tenure(self.identity, self._timing)
        self._must_look = True
        self._attempts: set[asyncio.Task[None]] = set()
        self._newest: asyncio.Task[None] | None = None
        self._attempt_due = -math.inf
        self._claimed_version, self._claimed_at = "", -math.inf
        self._news = asyncio.Event()
        self._last_error: ApiError | None = None

    @property
    def is_leader(self) -> bool:
        return clock.monotonic() < self._tenure.leads_until

    @property
    def holder(self) -> str:
        """Return the holder of the Lease when it was last seen; empty if there was none."""
        return self._tenure.observation.last_holder if self._tenure.observation else ""

    def check(self) -> None:
        """The guard for `AsyncClient.guarded`."""
        if not self.is_leader:
            raise NotLeader(f"{self.identity} does not hold the lease {self.namespace}/{self.name}")

    async def acquire(self) -> None:
        """Until this process leads. Tries for ever: being second is the normal state of a candidate."""
        log.info("waiting for leadership lease=%s/%s identity=%s", self.namespace, self.name, self.identity)
        try:
            while not self.is_leader:
                await self._step()
        except BaseException:
            await self._end_attempts()
            raise  # otherwise what is still under way goes on for `hold`: its answer may keep the Lease
        log.info("became leader lease=%s/%s identity=%s", self.namespace, self.name, self.identity)

    async def hold(self) -> None:
        """Renews; raises LeadershipLost at the moment leading must stop."""
        try:
            while self.is_leader:
                await self._step()
        finally:
            await self._end_attempts()
        self._tenure = election.resigned(self._tenure)
        if self._tenure.has_lost:
            raise LeadershipLost(
                f"the lease {self.namespace}/{self.name} was taken by {self.holder or 'nobody'}"
            )
        raise LeadershipLost(
            f"the lease {self.namespace}/{self.name} could not be renewed within "
            f"{self._timing.renew_deadline_seconds:g} s: {self._last_error or 'the API server hangs'}"
        )

    async def release(self) -> None:
        """Lets another take the Lease at once. Call only after everything that needed it has ended."""
        await self._end_attempts()
        if not self.is_leader:
            return
        self._tenure = election.resigned(self._tenure)
        try:
            async with asyncio.timeout(self._timing.renew_deadline_seconds):
                await self._give_back()
        except (ApiError, TimeoutError) as error:
            log.warning(
                "lease not released, it will expire lease=%s/%s error=%s",
                self.namespace,
                self.name,
                str(error) or "no answer in time",
            )

    async def _give_back(self) -> None:
        for _ in range(_RELEASES):
            if self._must_look:
                await self._look()
            record = self._record
            if record is None or record.holder != self.identity:
                return
            now = datetime.now(UTC)
            lease = election.released(record, namespace=self.namespace, name=self.name, wall=now)
            try:
                await self._client.replace(LEASES, lease)
                return
            except Conflict as error:  # a renewal of ours that was still under way came first
                self._must_look, self._last_error = True, error
        raise self._last_error or AssertionError

    async def _step(self) -> None:
        """Begins an attempt if one is due; waits for an answer, the next attempt or the end of leading."""
        now = clock.monotonic()
        if now >= self._attempt_due:
            self._begin_attempt(now)
        self._news.clear()
        ends = self._tenure.leads_until
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(self._attempt_due, ends) if ends > now else self._attempt_due):
                await self._news.wait()
        for task in [task for task in self._attempts if task.done()]:
            self._attempts.discard(task)
            task.result()  # a defect is raised here

    def _begin_attempt(self, now: float) -> None:
        self._newest = asyncio.create_task(self._attempt(now), name="leadership attempt")
        self._newest.add_done_callback(lambda _: self._news.set())
        self._attempts.add(self._newest)
        self._attempt_due = now + self._timing.second_attempt_seconds

    async def _end_attempts(self) -> None:
        for task in self._attempts:
            task.cancel()
        if self._attempts:
            await asyncio.wait(self._attempts)
        self._attempts.clear()

    async def _attempt(self, began: float) -> None:
        """One attempt to get or keep the Lease; whatever goes wrong shows in `leads_until`."""
        try:
            async with asyncio.timeout(self._timing.renew_deadline_seconds):
                await self._look_and_claim(began)
            self._last_error = None
        except TimeoutError:
            self._last_error = None
        except ApiError as error:
            self._note(error)
        finally:
            if asyncio.current_task() is self._newest:
                jitter = 0.0 if self.is_leader else random.random() * _JITTER
                pause_seconds = self._timing.retry_period_seconds * (1 + jitter)
                self._attempt_due = min(self._attempt_due, began + pause_seconds, self._free_at())

    async def _look_and_claim(self, began: float) -> None:
        if self._must_look:
            await self._look()
        if self._claimed_version == self._version and self._claimed_at >= began:
            return  # another attempt has claimed what this one has just seen
        claimed = self._version
        try:
            await self._claim()
        except (Conflict, AlreadyExists):
            if self._version == claimed:  # otherwise what came first is in hand already
                await self._look()  # at once: if it is another's, leading ends here

    def _free_at(self) -> float:
        """When another's Lease may be taken, if that is still to come; the next look is no later."""
        observation = self._tenure.observation
        if observation is None or self.is_leader or observation.free_at <= clock.monotonic():
            return math.inf
        return observation.free_at

    @property
    def _record(self) -> LeaseRecord | None:
        """The Lease as last seen."""
        return self._tenure.observation.record if self._tenure.observation else None

    @property
    def _version(self) -> str:
        """The version of the Lease as last seen; empty if there is none."""
        return self._record.resource_version if self._record else ""

    async def _look(self) -> None:
        self._must_look, asked_at = True, clock.monotonic()
        try:
            record = election.read(await self._client.get(LEASES, self.name, self.namespace))
        except NotFound:
            record = None
        self._take_in(record, asked_at)

    async def _claim(self) -> None:
        observation, now = self._tenure.observation, clock.monotonic()
        assert observation is not None
        move = election.decide(observation, self.identity, now, leads=self.is_leader)
        if move is Move.WAIT:
            self._must_look = True
            return
        lease = election.claim(
            observation.record,
            namespace=self.namespace,
            name=self.name,
            identity=self.identity,
            timing=self._timing,
            wall=datetime.now(UTC),
        )
        self._must_look = True  # until an answer is in hand nobody knows what the Lease says
        self._claimed_version, self._claimed_at = self._version, now
        self._tenure = election.with_claim_sent(self._tenure, lease["spec"]["renewTime"], now)
        write = self._client.create if move is Move.CREATE else self._client.replace
        self._take_in(election.read(await write(LEASES, lease)), now)

    def _take_in(self, record: LeaseRecord | None, asked_at: float) -> None:
        before, now = self._tenure.leads_until, clock.monotonic()
        self._tenure = election.with_answer(self._tenure, record, asked_at=asked_at, now=now)
        self._must_look = False
        if self._tenure.leads_until > before:
            sent_at = self._tenure.leads_until - self._timing.renew_deadline_seconds
            self._attempt_due = max(now, sent_at + self._timing.retry_period_seconds)
        elif asyncio.current_task() is self._newest:
            self._attempt_due = now + self._timing.second_attempt_seconds  # its next request is young
        self._news.set()

    def _note(self, error: ApiError) -> None:
        if str(error) != str(self._last_error):
            log.warning("leader election lease=%s/%s error=%s", self.namespace, self.name, error)
        self._last_error = error
