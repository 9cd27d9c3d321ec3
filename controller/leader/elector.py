"""Leader election with a Lease: sends the requests of `candidacy.py`, and keeps their times.

There are never two leaders, even if the API server hangs during a call: `is_leader` compares a time with a
clock that always advances, `hold` ends at the deadline whatever it waits for, and the controllers' client
calls `check` before each write. Nor is the Lease lost to a slow server: a renewal counts from when it was
sent, however late its answer arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from datetime import UTC, datetime

from controller import clock
from controller.client import AsyncClient
from controller.errors import AlreadyExists, ApiError, Conflict, NotFound
from controller.leader import candidacy, election
from controller.leader.candidacy import Ask, AskKind, Candidacy
from controller.leader.container_end import pod_of, unique_identity
from controller.leader.election import ElectionTiming, LeaseRecord, Tenure
from controller.resources import LEASES, PODS, Object

log = logging.getLogger(__name__)

_MOST_SPREAD = 0.2
_RELEASES = 3
"""Attempts to release the Lease if it changes meanwhile."""


class LeadershipLost(Exception):
    """This process may no longer act; it should exit and be restarted."""


class LeadershipSuspended(Exception):
    """This process must not act until it has the Lease again; `acquire` continues from there."""


class NotLeader(ApiError):
    """A write was prevented because this process does not lead."""


class Elector:
    """Candidate: `acquire`, then `hold` during the work, then `release` when the work has ended."""

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
        tenure = Tenure(self.identity, self._timing)
        self._state = Candidacy(namespace, name, tenure, spread=random.random() * _MOST_SPREAD)
        self._has_led = False
        self._requests: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._last_error: ApiError | None = None
        self._last_pod_error = ""

    @property
    def is_leader(self) -> bool:
        return self._state.tenure.leads(clock.monotonic())

    def check(self) -> None:
        """Raise NotLeader unless this process leads; the guard of `AsyncClient.guarded`."""
        if not self.is_leader:
            raise NotLeader(f"{self.identity} does not hold the lease {self.namespace}/{self.name}")

    async def acquire(self) -> None:
        """Wait until this process leads. It tries forever: a candidate is usually second.

        Raises:
            LeadershipLost: it has led before, and another process may have led since.
        """
        log.info("waiting for leadership lease=%s/%s identity=%s", self.namespace, self.name, self.identity)
        try:
            while not self.is_leader:
                if self._has_led and not self._state.tenure.is_holder:
                    raise self._lost()
                await self._step()
        except BaseException:
            await self._end_requests()
            raise  # on success, pending requests continue for `hold`: their answers may renew the Lease
        self._has_led = True
        log.info("became leader lease=%s/%s identity=%s", self.namespace, self.name, self.identity)

    async def hold(self) -> None:
        """Renew until leading must stop; raise at that moment.

        Raises:
            LeadershipLost: another process has the Lease, or none has.
            LeadershipSuspended: the Lease could not be renewed in time.
        """
        try:
            while self.is_leader:
                await self._step()
        finally:
            await self._end_requests()
        self._state = candidacy.suspended(self._state, clock.monotonic())
        if not self._state.tenure.is_holder:
            raise self._lost()
        raise LeadershipSuspended(
            f"the lease {self.namespace}/{self.name} could not be renewed within "
            f"{self._timing.renew_deadline_seconds:g} s: {self._last_error or 'the API server hangs'}"
        )

    async def release(self) -> None:
        """Let another process take the Lease at once. Call it only after all work that needs the Lease has
        ended."""
        await self._end_requests()
        if not self.is_leader:
            return
        self._state = candidacy.suspended(self._state, clock.monotonic())
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
        for attempt in range(_RELEASES):
            record = await self._read()
            if record is None or record.holder != self.identity:
                return
            now = datetime.now(UTC)
            lease = election.released(record, namespace=self.namespace, name=self.name, wall=now)
            try:
                await self._client.replace(LEASES, lease)
                return
            except Conflict:  # our own pending renewal came first
                if attempt == _RELEASES - 1:
                    raise

    def _lost(self) -> LeadershipLost:
        observation = self._state.tenure.observation
        holder = observation.last_holder if observation else ""
        taker = holder if holder not in ("", self.identity) else "nobody"
        return LeadershipLost(f"the lease {self.namespace}/{self.name} was taken by {taker}")

    async def _step(self) -> None:
        """Send due requests; wait for an answer, the next request or the end of leadership."""
        now = clock.monotonic()
        self._news.clear()
        while (ask := self._next_ask(now)) is not None:
            self._send(ask)
        wakes_at, ends = candidacy.next_at(self._state), self._state.tenure.leads_until
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(wakes_at, ends) if ends > now else wakes_at):
                await self._news.wait()
        for task in [task for task in self._requests if task.done()]:
            self._requests.discard(task)
            task.result()  # a defect is raised here

    def _next_ask(self, now: float) -> Ask | None:
        self._state, ask = candidacy.next_ask(self._state, now, datetime.now(UTC))
        return ask

    def _send(self, ask: Ask) -> None:
        task = asyncio.create_task(self._answer(ask), name=f"leadership: {ask.kind.value}")
        task.add_done_callback(lambda _: self._news.set())
        self._requests.add(task)

    async def _end_requests(self) -> None:
        for task in self._requests:
            task.cancel()
        if self._requests:
            await asyncio.wait(self._requests)
        self._requests.clear()

    async def _answer(self, ask: Ask) -> None:
        """Send a request, and process its outcome; any problem shows in `leads_until`."""
        try:
            async with asyncio.timeout(self._timing.renew_deadline_seconds):
                found = await self._carry_out(ask)
        except (Conflict, AlreadyExists):
            self._state = candidacy.refused(self._state, ask, clock.monotonic())
        except (ApiError, TimeoutError) as error:
            self._state = candidacy.failed(self._state, ask, clock.monotonic())
            self._note(ask, error)
        else:
            self._take_in(ask, found)

    async def _carry_out(self, ask: Ask) -> Object | None:
        """Send the request and return the object; None if it does not exist."""
        if ask.kind is AskKind.CREATE:
            return await self._client.create(LEASES, ask.lease)
        if ask.kind is AskKind.REPLACE:
            return await self._client.replace(LEASES, ask.lease)
        resource, name = (LEASES, self.name) if ask.kind is AskKind.LOOK else (PODS, pod_of(ask.holder))
        try:
            return await self._client.get(resource, name, self.namespace)
        except NotFound:
            return None

    def _take_in(self, ask: Ask, found: Object | None) -> None:
        now = clock.monotonic()
        if ask.kind is AskKind.LOOK_AT_POD:
            self._state = candidacy.pod_answered(self._state, ask, found, now)
            if self._state.tenure.ended_holder == ask.holder:
                log.info("the leader's container has ended identity=%s", ask.holder)
            return
        record = None if found is None else election.read(found)
        self._state, self._last_error = candidacy.answered(self._state, ask, record, now), None

    def _note(self, ask: Ask, error: ApiError | TimeoutError) -> None:
        """Log an error once, and keep one about the Lease for the message of its consequence."""
        if ask.kind is AskKind.LOOK_AT_POD:
            if str(error) != self._last_pod_error:
                log.warning("cannot look whether the leader's container has ended error=%s", error)
            self._last_pod_error = str(error)
            return
        if isinstance(error, ApiError) and str(error) != str(self._last_error):
            log.warning("leader election lease=%s/%s error=%s", self.namespace, self.name, error)
        self._last_error = error if isinstance(error, ApiError) else None

    async def _read(self) -> LeaseRecord | None:
        try:
            return election.read(await self._client.get(LEASES, self.name, self.namespace))
        except NotFound:
            return None
