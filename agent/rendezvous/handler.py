"""torch's rendezvous, where the ElasticJob's status says who meets whom.

The same handler serves `dlr run` and stock `torchrun --rdzv-backend=dlr`. For the latter it is the only part
of dlr at work, so creating it starts the agent's session with the cluster, and its shutdown stops that.
"""

from __future__ import annotations

import logging
import os
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

from agent.checkpoints.holder import CheckpointMemory
from agent.environment import Environment
from agent.facts.failure import Failure, failure_of_process
from agent.facts.world import ExitReason, Verb, World
from agent.kube.api import Api
from agent.network import SocketInterfaces
from agent.rendezvous.meeting import Meeting, MeetingTimeoutError, RoundStores, SupersededError
from agent.session import Session
from agent.torch_compat import elastic
from crds.agent_report import AgentState

BACKEND = "dlr"


logger = logging.getLogger(__name__)

JOIN_TIMEOUT_SECONDS = 600
"""Until a world that stands, but whose members do not come, counts as failed; --rdzv-conf join_timeout=…"""


class JobEndedError(RendezvousClosedError):
    """There is nothing left to join."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class DlrRendezvousHandler(RendezvousHandler):
    """See torch.distributed.elastic.rendezvous.RendezvousHandler.

    Args:
        run_id: the ElasticJob's name.
        session: of this agent; `shutdown` stops it.
        join_timeout_seconds: for the members of a world to meet.
        master_port: where the training processes meet if this agent is rank 0, as `--master-port` asks; 0 for
            any free one.
    """

    def __init__(
        self, run_id: str, session: Session, *, join_timeout_seconds: float, master_port: int = 0
    ) -> None:
        self.session = session
        self.memory: CheckpointMemory | None = None
        """The checkpoints that this agent keeps; stock torchrun's keeps none."""
        self._run_id = run_id
        self._join_timeout_seconds = join_timeout_seconds
        self._master_port = master_port
        self._round_stores: RoundStores | None = None
        self._interfaces = SocketInterfaces(os.environ)
        session.reporter.follow_section("network", self._interfaces.to_status)
        self._closed = False
        self._is_alone = False
        """Nobody could hold the copies that the job asks for, in the round last joined."""
        self.on_meeting: Callable[[Store, World], None] = lambda _store, _world: None
        """Called when all members of a round have met, with the agents' store of the round."""

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The training processes use the store that rank 0's agent opened for the round."""
        return True

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a world newer than the last one has this agent, and all its members have met.

        Raises:
            JobEndedError: the job has ended, or goes on without this agent.
            RendezvousClosedError: `set_closed` was called.
            RendezvousTimeoutError: the other members did not come.
        """
        if not self._closed:
            self.session.begin_reports()  # only now can this agent keep what Ready promises
        while True:
            if self._closed:
                raise RendezvousClosedError("the rendezvous was closed")
            world = self.session.await_world()
            if isinstance(world, ExitReason):
                raise JobEndedError(world)
            try:
                return self._join(world)
            except SupersededError:
                logger.info("round=%d was superseded before all had met", world.round)

    def num_nodes_waiting(self) -> int:
        """Above 0 when the world that runs is not the one that should: what torchrun's agent polls."""
        return 0 if self.session.is_settled() else 1

    def is_closed(self) -> bool:
        return self._closed or self.session.next_action().verb is Verb.EXIT

    def set_closed(self) -> None:
        """Close it for this agent only: whether the job has ended is the controller's to say."""
        self._closed = True

    def shutdown(self) -> bool:
        """Report how the processes of torchrun ended, close the rendezvous and stop the session."""
        self._closed = True
        reporter = self.session.reporter
        if reporter.latest.state is AgentState.RUNNING:  # torchrun's launcher is leaving, maybe by an error
            error = sys.exc_info()[1]
            if error is None:
                reporter.report(AgentState.SUCCEEDED)
            else:
                reporter.report(AgentState.STOPPED, failure=self._failure(error))
        self.session.stop()
        return True

    def _join(self, world: World) -> RendezvousInfo:
        """Meet the other members of `world`.

        Raises:
            SupersededError: there is a newer world.
            RendezvousTimeoutError: they did not come.
        """
        session = self.session
        rank, size = world.members.index(session.member), len(world.members)
        logger.info("joining round=%d rank=%d of=%d", world.round, rank, size)
        address, timeout_seconds = session.environment.pod_ip, self._join_timeout_seconds
        if self.memory is not None:
            after_failure = session.comes_after_failure(world)
            self.memory.expect(session.gone_before(world), after_failure=after_failure)
        meeting = Meeting(
            world,
            rank,
            session.environment,
            session.store.values,
            timeout_seconds,
            self.memory,
            master_port=self._master_port,
            last=self._last_store(),
            drop_last=self._drop_last_store,
        )
        try:
            stores = meeting.hold(session.watcher.fileno(), lambda: session.is_newest(world))
        except MeetingTimeoutError as error:
            session.stand_by(world.round)
            raise RendezvousTimeoutError(str(error)) from error
        self._interfaces.choose(stores.bootstrap.master_addr if rank else address, address)
        self._round_stores = stores  # the last round's store ends here: all its processes have ended
        self.on_meeting(stores.agents, world)
        self._note_if_alone(size)
        session.joined(world)
        return RendezvousInfo(stores.agents, rank, size, stores.bootstrap)

    def _last_store(self) -> tuple[str, int] | None:
        """Return the address of the training processes' last store, if this agent has opened it."""
        server = self._round_stores.server if self._round_stores is not None else None
        return None if server is None else (server.host, server.port)

    def _drop_last_store(self) -> None:
        self._round_stores = None

    def _note_if_alone(self, size: int) -> None:
        """Say so, once, where a job asks for copies in other Pods' memory, and its world has no other Pod."""
        asks_for_copies = self.memory is not None and self.session.environment.memory_replicas > 0
        was_alone, self._is_alone = self._is_alone, asks_for_copies and size == 1
        if self._is_alone and not was_alone:
            logger.warning(
                "memoryCheckpoint.replicas asks for copies in another Pod, and this world has no other Pod: "
                "if this one is lost, training goes on from storage. Add a worker, or set replicas to 0"
            )

    def _failure(self, error: BaseException) -> Failure | None:
        """The failure of torchrun's processes, if `error` tells of one."""
        if not isinstance(error, ChildFailedError):
            return None
        rank, process = error.get_first_failure()
        last = self.session.reporter.latest
        return failure_of_process(
            process,
            sequence=last.failures + 1,
            round_=last.observed_round,
            rank=rank,
            stderr=None,
            time=datetime.now(timezone.utc),
        )


def create_handler(
    params: RendezvousParameters, me: Environment, api: Api | None = None
) -> DlrRendezvousHandler:
    """Start the agent's session, and return the handler for it, as torch's registry asks.

    Args:
        me: this worker.
        api: in place of the cluster that the environment names.

    Raises:
        InvalidEnvironmentError: the environment names no API server, or an address of another Pod.
    """
    local_world_size = params.get_as_int("local_world_size") or elastic.launched_processes()
    return DlrRendezvousHandler(
        params.run_id,
        Session.start(me, os.environ, local_world_size, api),
        join_timeout_seconds=params.get_as_int("join_timeout") or JOIN_TIMEOUT_SECONDS,
        master_port=params.get_as_int("master_port") or 0,
    )
