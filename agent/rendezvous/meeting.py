"""Meeting of a round's agents through the store of rank 0's agent, which a newer round can cut short.

The meeting runs in a thread of its own, while the agent's main thread waits for its end or for news of the
world, since a call of the store blocks, for long if the peer was cut off from the network.
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
"""Time limit of one call of the store, after which a thread notices that its meeting was abandoned."""

MAX_WAIT_SECONDS = 1.0
"""Longest pause between two attempts to meet."""

ANNOUNCEMENT = "announcement"
"""Key of a round's `Announcement`."""

STORE_TIMEOUT_SECONDS = 60.0
"""Time-out of torch's agent for the store after the meeting, when all agents are there."""


class SupersededError(Exception):
    """There is a newer round than the one to join."""


class MeetingTimeoutError(Exception):
    """The other agents did not come, although the round still stands."""


@dataclass(frozen=True)
class RoundStores:
    """The stores of one round."""

    agents: Store
    """The round's part of the store of rank 0's agent, which only agents of the job can read and write."""
    bootstrap: RendezvousStoreInfo
    """Address of the training processes' store. It has no authentication, so agents do not use it."""
    server: TCPStore | None
    """The training processes' store, on rank 0; it lives as long as this reference."""


@dataclass(frozen=True)
class Announcement:
    """Announcement of a round's meeting by rank 0's agent."""

    address: str
    port: int
    """Port of the training processes' store."""
    prefix: str
    """Prefix of the meeting's keys, below the round's."""

    @classmethod
    def read(cls, round_keys: Store) -> Announcement:
        """Read the announcement, which must be set; raise DistError if the store cannot be reached."""
        return cls(**json.loads(round_keys.get(ANNOUNCEMENT)))

    @property
    def bootstrap(self) -> RendezvousStoreInfo:
        """Address of that store, as torch's agent passes it on to the training processes."""
        return RendezvousStoreInfo(self.address, self.port)


class Meeting:
    """Brings all agents of one world together.

    They meet through the store of rank 0's agent, whose address the world has (`agent.connection`). There
    rank 0 announces a TCPStore that it has opened for the training processes of the round, and an unused
    prefix of keys. Then all wait for all. So on every member the processes of earlier rounds have ended
    before those of this round start, which can load a checkpoint that one of them saved on SIGTERM. The
    agents also agree on the checkpoint in memory to resume from (`agent.checkpoints`).

    Args:
        timeout_seconds: time limit for all to come.
        memory: this agent's checkpoints in memory; None if it keeps none.
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
        """Prefix of this meeting's keys, if this agent is rank 0."""
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
            wake_fd: descriptor that becomes readable when the world may have changed.
            is_current: returns whether the world is still the newest.

        Raises:
            SupersededError: there is a newer world.
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
        """Meet, with retries when a connection breaks or is refused, while the round is current."""
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
        agreement.publish_inventory()
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
        """Raise if the meeting has to end.

        Raises:
            SupersededError: the meeting was abandoned.
            MeetingTimeoutError: the time is over; the message includes the trouble.
        """
        if self._abandoned.is_set():
            raise SupersededError
        if time.monotonic() >= self._deadline:
            raise MeetingTimeoutError(
                f"round {self._world.round} could not be joined, whose rank 0 is at "
                f"{self._world.master_address}:{self._world.master_port}: {trouble}"
            )


def prefetch(world: AgentWorld | None, me: Environment, memory: CheckpointHolder) -> bool:
    """Begin to fetch the replicas of this worker's predecessor, while modules are still being imported.

    Args:
        world: the newest world.

    Returns:
        Whether the predecessor was a member of that world, so that others wait for this worker.
    """
    rank = predecessors_rank(world, me.member)
    if world is None or rank is None:
        return False
    memory.prefetch(world.round, lambda: server_of_copies(world, rank, me.key))
    return True


def predecessors_rank(world: AgentWorld | None, me: Member) -> int | None:
    """Return the rank of an earlier incarnation of this slot in a world; None if it has none."""
    for rank, member in enumerate(world.members if world else ()):
        if member.index == me.index and member.incarnation < me.incarnation:
            return rank
    return None


def server_of_copies(world: AgentWorld, rank: int, key: bytes) -> str | None:
    """Return the slot server with the replicas of that rank's agent in that world; None if it is unknown.

    For rank 0 it is unknown, since the round's store was lost with it.
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
