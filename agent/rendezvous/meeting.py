"""The agents of a round meet through the store of rank 0's agent, and a newer round can cut that short.

The meeting runs on a thread of its own, while the agent's main thread waits for its end or for news of the
world: a store call blocks, and a peer that was cut off from the network is silent for a while.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError, DistStoreError, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousStoreInfo

from agent.checkpoints.holder import CheckpointHolder, OutdatedMeetingError
from agent.connection.store import PeerStore
from agent.connection.store_state import Values, round_prefix
from agent.environment import Environment
from agent.facts.world import AgentWorld, Member
from agent.rendezvous.agreement import CheckpointAgreement, server_of_peer
from healthcheck.probes.tcp_store import open_store

logger = logging.getLogger(__name__)

SLICE_SECONDS = 30.0
"""The longest time an abandoned meeting's thread sits in one store call."""

MAX_WAIT_SECONDS = 1.0

ANNOUNCEMENT = "announcement"
"""Key of a round: where rank 0's agent has opened the training processes' store, and the meeting's prefix."""

STORE_TIMEOUT_SECONDS = 60.0
"""The time-out of what torch's agent asks of the store after the meeting, when all agents are there."""


class SupersededError(Exception):
    """The round that was being joined is not the newest any more."""


class MeetingTimeoutError(Exception):
    """The other agents did not come, although the round still stands."""


@dataclass(frozen=True)
class RoundStores:
    """The stores of one round."""

    agents: Store
    """The round's part of the store of rank 0's agent, which agents of the job alone can read and write."""
    bootstrap: RendezvousStoreInfo
    """The address of the training processes' store. It asks for no proof, so agents do not use it."""
    server: TCPStore | None
    """That store, on rank 0: it lives as long as this reference."""


@dataclass(frozen=True)
class Announcement:
    """What rank 0's agent announces for a round."""

    address: str
    port: int
    """The port of the training processes' store."""
    prefix: str
    """The prefix of the meeting's keys, below the round's."""

    @classmethod
    def read(cls, round_keys: Store) -> Announcement:
        """Read the announcement, which is there; raise DistError where the store cannot be reached."""
        return cls(**json.loads(round_keys.get(ANNOUNCEMENT)))

    @property
    def bootstrap(self) -> RendezvousStoreInfo:
        """The address of that store, as torch's agent gives it to the training processes."""
        return RendezvousStoreInfo(self.address, self.port)


class Meeting:
    """Brings all agents of one world together.

    They meet through the store of rank 0's agent, whose address the world names (`agent.connection`). There
    rank 0 announces a TCPStore that it has opened for the training processes of the round, and a prefix of
    keys that no earlier meeting has used. Then all wait for all. So no process of a round is started
    before the last process of the rounds before it has ended on every member: what one saves on SIGTERM, all
    can load. Here they also agree upon the checkpoint in memory that these go on from (`agent.checkpoints`).

    Args:
        timeout_seconds: for all to come.
        memory: of this agent; None if it keeps no checkpoints.
    """

    def __init__(
        self,
        world: AgentWorld,
        rank: int,
        me: Environment,
        values: Values,
        timeout_seconds: float,
        memory: CheckpointHolder | None = None,
    ) -> None:
        self._world = world
        self._rank = rank
        self._me = me
        self._values = values
        self._prefix = secrets.token_hex(8) + "/"
        """Of this meeting's keys, if this agent is rank 0."""
        self._memory = memory
        self._deadline = time.monotonic() + timeout_seconds
        self._abandoned = threading.Event()
        self._done_fd = os.eventfd(0, os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._done_fd)  # an abandoned meeting's thread may be its last user
        self._server: TCPStore | None = None
        self._stores: RoundStores | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dlr-join", daemon=True)

    def hold(self, wake_fd: int, is_current: Callable[[], bool]) -> RoundStores:
        """Block until all have met.

        Args:
            wake_fd: becomes readable when the world may have changed.
            is_current: whether the world still stands.

        Raises:
            SupersededError: it does not.
            MeetingTimeoutError: the others did not come.
        """
        self._thread.start()
        poll = select.poll()
        poll.register(self._done_fd, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        try:
            while not any(fd == self._done_fd for fd, _ in poll.poll()):
                if not is_current():
                    raise SupersededError
        except BaseException:
            self._abandoned.set()
            raise
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._stores is not None
        return self._stores

    def _run(self) -> None:
        try:
            self._stores = self._meet_with_retries()
        except BaseException as error:
            self._error = error
        finally:
            os.eventfd_write(self._done_fd, 1)

    def _meet_with_retries(self) -> RoundStores:
        """Meet; try again while the round stands where a connection breaks or is refused."""
        wait_seconds = 0.05
        while True:
            try:
                return self._meet()
            except OutdatedMeetingError:
                raise SupersededError from None
            except (OSError, DistNetworkError) as error:
                self._check(str(error))
                self._abandoned.wait(wait_seconds)
                wait_seconds = min(2 * wait_seconds, MAX_WAIT_SECONDS)

    def _meet(self) -> RoundStores:
        world = self._world
        store = PeerStore.connect(world.master_address, world.master_port, self._me.key)
        round_keys = store.under(round_prefix(world.round))
        if self._rank == 0:
            self._announce(round_keys)
        else:
            self._wait(round_keys, [ANNOUNCEMENT])
        announced = Announcement.read(round_keys)
        bootstrap, agents = announced.bootstrap, round_keys.under(announced.prefix)
        rank, size = self._rank, len(world.members)
        agreement = CheckpointAgreement(
            agents, world.round, rank, size, self._memory, self._wait, self._abandoned
        )
        agreement.say_here()
        if rank == 0:
            self._wait(agents, [f"here/{rank}" for rank in range(size)])
            agreement.lead()
        else:
            agreement.follow()
        agents.set_timeout(timedelta(seconds=STORE_TIMEOUT_SECONDS))
        return RoundStores(agents, bootstrap, self._server)

    def _announce(self, round_keys: Store) -> None:
        """Open the training processes' store, as rank 0, and announce it."""
        if self._server is None:
            self._server = open_store(self._me.pod_ip)
            self._values.open_round(self._world.round)
        announcement = Announcement(self._server.host, self._server.port, self._prefix)
        round_keys.set(ANNOUNCEMENT, json.dumps(asdict(announcement)))

    def _wait(self, store: Store, keys: list[str]) -> None:
        while True:
            remaining_seconds = max(self._deadline - time.monotonic(), 0.001)
            try:
                store.wait(keys, timedelta(seconds=min(SLICE_SECONDS, remaining_seconds)))
                return
            except DistStoreError:
                absent = [key for key in keys if not store.check([key])]
                self._check(
                    f"{absent[0]} and {len(absent) - 1} more of {len(keys)} are missing" if absent else ""
                )

    def _check(self, trouble: str) -> None:
        """Raise if there is no point in going on.

        Raises:
            SupersededError: the meeting was abandoned.
            MeetingTimeoutError: the time is over; it names the trouble.
        """
        if self._abandoned.is_set():
            raise SupersededError
        if time.monotonic() >= self._deadline:
            raise MeetingTimeoutError(
                f"round {self._world.round} could not be joined, whose rank 0 is at "
                f"{self._world.master_address}:{self._world.master_port}: {trouble}"
            )


def prefetch(world: AgentWorld | None, me: Environment, memory: CheckpointHolder) -> bool:
    """Begin to fetch what this worker's predecessor has kept, while what processes need is imported.

    Args:
        world: the newest one.

    Returns:
        Whether the predecessor had a part in that world: then others wait for this worker.
    """
    rank = predecessors_rank(world, me.member)
    if world is None or rank is None:
        return False
    memory.prefetch(world.round, lambda: server_of_copies(world, rank, me.key))
    return True


def predecessors_rank(world: AgentWorld | None, me: Member) -> int | None:
    """The rank that an earlier incarnation of this slot has in a world; None if it has none."""
    for rank, member in enumerate(world.members if world else ()):
        if member.index == me.index and member.incarnation < me.incarnation:
            return rank
    return None


def server_of_copies(world: AgentWorld, rank: int, key: bytes) -> str | None:
    """The slot server of who held the replicas of that rank's agent in that world; None if nobody is known.

    Of rank 0 nobody knows, since the round's store went with it.
    """
    if rank == 0:
        return None
    try:
        store = PeerStore.connect(world.master_address, world.master_port, key)
        round_keys = store.under(round_prefix(world.round))
        if not round_keys.check([ANNOUNCEMENT]):
            return None
        agents = round_keys.under(Announcement.read(round_keys).prefix)
        return server_of_peer(agents, rank, len(world.members))
    except (OSError, DistError, ValueError) as error:
        logger.info("what round %d has kept is fetched when the next begins: %s", world.round, error)
        return None
