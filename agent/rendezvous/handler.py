"""torch's rendezvous, whose members come from the ElasticWorld.

The same handler serves `dlr run` and stock `torchrun --rdzv-backend=dlr`. For torchrun it is the only active
part of dlr, so `create_handler` connects it to the cluster, and its shutdown closes the connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from collections.abc import Callable
from datetime import datetime, timezone

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from agent.checkpoints.holder import CheckpointHolder
from agent.connection.store_server import StoreServer
from agent.environment import Environment, listen
from agent.facts.failure import LocalFailure, failure_of_process
from agent.facts.world import AgentVerb, AgentWorld, ExitReason, NextAction
from agent.kube.api import AgentApi
from agent.link import Link
from agent.membership import WorldMembership
from agent.monitor import accelerators
from agent.network import SocketInterfaces
from agent.node_check.duties import NodeCheckFollower
from agent.peers.watcher import PeerWatcher
from agent.rendezvous.meeting import Meeting, MeetingTimeoutError, RoundStores, SupersededError
from agent.replicas.desk import ReplicasDesk
from agent.report.report import AgentFacts
from agent.report.reporter import Reporter
from agent.torch_compat import elastic
from crds.agent_report import AgentState
from crds.dlrover import OUR_BACKEND
from crds.names import ENV_REPLICAS_SOCKET
from crds.progress_record import ENV_ROUND

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_SECONDS = 600
"""Time limit for all members of a current world to meet; --rdzv-conf join_timeout=…"""


class JobEndedError(RendezvousClosedError):
    """The job has ended, or goes on without this agent."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class DlrRendezvousHandler(RendezvousHandler):
    """See torch.distributed.elastic.rendezvous.RendezvousHandler.

    Args:
        reporter: this agent's reporter; the first rendezvous starts it.
        store: this agent's store, used by rounds in which it has rank 0.
        join_timeout_seconds: time limit for the members of a world to meet.
        memory: this agent's checkpoints in memory; stock torchrun keeps none.
        on_meeting: called when all members of a round have met, with the agents' store of the round.
        end: called by `shutdown`.
    """

    def __init__(
        self,
        me: Environment,
        membership: WorldMembership,
        reporter: Reporter,
        active_check: NodeCheckFollower,
        store: StoreServer,
        interfaces: SocketInterfaces,
        *,
        join_timeout_seconds: float = JOIN_TIMEOUT_SECONDS,
        memory: CheckpointHolder | None = None,
        on_meeting: Callable[[Store, AgentWorld], None] = lambda _store, _world: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._me = me
        self._membership = membership
        self._reporter = reporter
        self._active_check = active_check
        self._store = store
        self._interfaces = interfaces
        self._join_timeout_seconds = join_timeout_seconds
        self._memory = memory
        self._on_meeting = on_meeting
        self._end = end
        self._round_stores: RoundStores | None = None
        self._closed = False
        self._is_alone = False
        """The last round had no other Pod for the copies that the job asks for."""

    def get_backend(self) -> str:
        return OUR_BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The training processes use the store that rank 0's agent opened for the round."""
        return True

    def get_run_id(self) -> str:
        return self._me.owner_name

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a world newer than the last one has this agent, and all its members have met.

        Raises:
            JobEndedError: the job has ended, or goes on without this agent.
            RendezvousClosedError: `set_closed` was called.
            RendezvousTimeoutError: the other members did not come.
        """
        if not self._closed and self._reporter.ident is None:
            self._reporter.start()  # only now is this agent ready in the sense of its report
        while True:
            if self._closed:
                raise RendezvousClosedError("the rendezvous was closed")
            world = self._await_world()
            if isinstance(world, ExitReason):
                raise JobEndedError(world)
            try:
                return self._join(world)
            except SupersededError:
                logger.info("round=%d was superseded before all had met", world.round)

    def num_nodes_waiting(self) -> int:
        """Return 1 if a new world is wanted, else 0; torchrun's agent polls it."""
        return 0 if self._membership.is_settled() else 1

    def is_closed(self) -> bool:
        return self._closed or self._membership.next_action().verb is AgentVerb.EXIT

    def set_closed(self) -> None:
        """Close it for this agent only, since the controller decides whether the job has ended."""
        self._closed = True

    def shutdown(self) -> bool:
        """Report how torchrun's processes ended, and close the rendezvous."""
        self._closed = True
        if self._reporter.latest.state is AgentState.RUNNING:  # torchrun's launcher ends, maybe by an error
            error = sys.exc_info()[1]
            if error is None:
                self._reporter.report(AgentState.SUCCEEDED)
            else:
                self._reporter.report(AgentState.STOPPED, failure=self._failure(error))
        self._end()
        return True

    def _await_world(self) -> AgentWorld | ExitReason:
        """Block until a newer world has this agent as a member, or the agent has to leave.

        Meanwhile no training runs here, so a NodeCheck may test the node.
        """
        poll = select.poll()
        poll.register(self._membership.fileno(), select.POLLIN)
        try:
            while True:
                world = self._membership.next_world()
                if world is not None:
                    return world
                self._active_check.follow(self._membership.view.active_check)
                poll.poll()
        finally:
            self._active_check.leave()  # no probe runs beside training processes

    def _join(self, world: AgentWorld) -> RendezvousInfo:
        """Meet the other members of `world`.

        Raises:
            SupersededError: there is a newer world.
            RendezvousTimeoutError: the others did not come.
        """
        membership = self._membership
        rank, size = world.members.index(membership.member), len(world.members)
        logger.info("joining round=%d rank=%d of=%d", world.round, rank, size)
        address, standing = self._me.pod_ip, membership.standing
        if self._memory is not None:
            after_failure = standing.comes_after_failure(world)
            self._memory.expect(standing.gone_before(world), after_failure=after_failure)
        meeting = Meeting(
            world,
            rank,
            self._me,
            self._store.values,
            self._join_timeout_seconds,
            self._memory,
        )
        still_to_start = NextAction(AgentVerb.START, world.round)
        try:
            stores = meeting.hold(membership.fileno(), lambda: membership.next_action() == still_to_start)
        except MeetingTimeoutError as error:
            membership.stand_by(world.round)
            raise RendezvousTimeoutError(str(error)) from error
        self._interfaces.choose(stores.bootstrap.master_addr if rank else address, address)
        self._round_stores = stores  # this closes the last round's store, whose processes have all ended
        self._on_meeting(stores.agents, world)
        self._note_if_alone(size)
        membership.join(world)
        return RendezvousInfo(stores.agents, rank, size, stores.bootstrap)

    def _note_if_alone(self, size: int) -> None:
        """Warn, once, if the job asks for copies in other Pods' memory, and its world has no other Pod."""
        asks_for_copies = self._memory is not None and self._me.memory_replicas > 0
        was_alone, self._is_alone = self._is_alone, asks_for_copies and size == 1
        if self._is_alone and not was_alone:
            logger.warning(
                "memoryCheckpoint.replicas asks for copies in another Pod, and this world has no other Pod: "
                "if this one is lost, training goes on from storage. Add a worker, or set replicas to 0"
            )

    def _failure(self, error: BaseException) -> LocalFailure | None:
        """Return the failure of torchrun's processes from its error; None for other errors."""
        if not isinstance(error, ChildFailedError):
            return None
        rank, process = error.get_first_failure()
        last = self._reporter.latest
        return failure_of_process(
            process,
            sequence=last.failures + 1,
            round_=last.observed_round,
            rank=rank,
            stderr=None,
            time=datetime.now(timezone.utc),
        )


def create_handler(
    params: RendezvousParameters, me: Environment, api: AgentApi | None = None
) -> DlrRendezvousHandler:
    """Connect an agent of stock torchrun to the cluster, and return its handler, as torch's registry asks.

    Args:
        params: torch's parameters, with those of `--rdzv-conf`.
        api: API server to use in place of the one that the environment names.

    Raises:
        InvalidEnvironmentError: the environment names no API server, or an address of another Pod.
    """
    with contextlib.ExitStack() as cleanup:
        listener, store = listen(me, cleanup)
        link = Link.start(me, os.environ, cleanup, api)
        interfaces = SocketInterfaces(os.environ)
        replicas = ReplicasDesk.start(me, link.groups, store, cleanup) if link.groups is not None else None
        processes = elastic.launched_processes()
        peers = PeerWatcher(me.member, listener.host, listener.port, me.key)
        cleanup.callback(peers.close)
        reporter = link.reporter(
            AgentFacts(listener.port, processes, accelerators.detect()),
            cleanup,
            sections={
                "network": interfaces.to_status,
                "silent_peers": peers.to_status,
                **({"replicas": replicas.to_status} if replicas is not None else {}),
            },
        )
        peers.serve(lambda: reporter.progress(within_seconds=0.0))

        def note_meeting(agents: Store, world: AgentWorld) -> None:
            peers.meet(agents, world)
            if replicas is not None:  # torchrun's processes inherit its environment
                replicas.begin(world.round, processes)
                os.environ[ENV_REPLICAS_SOCKET], os.environ[ENV_ROUND] = replicas.path, str(world.round)

        if replicas is not None:
            replicas.serve(lambda: reporter.progress(within_seconds=0.0))
        return DlrRendezvousHandler(
            me,
            WorldMembership(me.member, link.watcher, reporter),
            reporter,
            NodeCheckFollower(link.api, me, reporter),
            store,
            interfaces,
            join_timeout_seconds=params.get_as_int("join_timeout") or JOIN_TIMEOUT_SECONDS,
            on_meeting=note_meeting,
            end=cleanup.pop_all().close,
        )
