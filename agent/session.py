"""The agent's life beside its ElasticJob: what it follows, renews and reports.

All of it is built, started and stopped here; what torch's agent asks of a rendezvous is in agent/rendezvous.
"""

from __future__ import annotations

import contextlib
import logging
import select
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from agent.environment import Environment
from agent.facts.world import (
    WAIT,
    Action,
    ExitReason,
    JobView,
    Member,
    Verb,
    World,
    next_action,
    planned_tier,
    tier_of_a_stop,
)
from agent.kube.api import Api
from agent.kube.watcher import Watcher
from agent.link import FLUSH_SECONDS, Link
from agent.monitor import accelerators
from agent.monitor.chronicle import Part
from agent.monitor.hang import StepReporting, step_reporting_of_slot
from agent.node_check.duties import ActiveCheck
from agent.own_port import listen
from agent.report.elasticworker import topology_of_pod
from agent.report.report import Departure, Facts
from agent.report.reporter import Reporter
from agent.shards.desk import Desk
from crds.protocol import (
    AgentState,
    KeptIn,
    RendezvousPhase,
)

logger = logging.getLogger(__name__)


class Session:
    """One agent beside the cluster, from `start` to `stop`.

    It renews the worker's Lease, follows the ElasticJob, meters what the Pod uses, and listens on one port
    for the agents of other workers. Reports begin with `begin_reports`.
    """

    def __init__(
        self,
        me: Environment,
        api: Api,
        *,
        listener: Listener,
        store: StoreServer,
        watcher: Watcher[JobView],
        reporter: Reporter,
        step_reporting: StepReporting,
        tells_steps: bool,
        desk: Desk,
        cleanup: contextlib.ExitStack,
    ) -> None:
        self.environment = me
        self.listener = listener
        self.store = store
        """What agents meet through in the rounds whose rank 0 this agent is."""
        self.watcher = watcher
        self.reporter = reporter
        self.step_reporting = step_reporting
        self.desk = desk
        self.tells_steps = tells_steps
        """Whether the script is known to report steps itself."""
        self.member = Member(me.worker_index, me.incarnation)
        self._api = api
        self._cleanup = cleanup
        self._active_check = ActiveCheck(api, me, reporter)
        self._joined_world: World | None = None
        self._topology: list[str] | None = None

    @classmethod
    def start(
        cls, me: Environment, environ: Mapping[str, str], local_world_size: int, api: Api | None = None
    ) -> Session:
        """Connect to the cluster, and wait for the first view of the job.

        Args:
            me: this worker.
            environ: of its Pod.
            local_world_size: how many training processes this agent will start.
            api: in place of the cluster that the environment names.

        Raises:
            InvalidEnvironmentError: the environment names no API server, or an address of another Pod.
        """
        with contextlib.ExitStack() as cleanup:
            listener, store = listen(me, cleanup)
            link = Link.start(me, environ, cleanup, api)
            reporter = link.reporter(Facts(listener.port, local_world_size, accelerators.detect()), cleanup)
            view, predecessor = link.first_view, link.predecessor
            members = view.world.members if view.world else ()
            return cls(
                me,
                link.api,
                listener=listener,
                store=store,
                watcher=link.watcher,
                reporter=reporter,
                step_reporting=step_reporting_of_slot(predecessor, me.worker_index, members),
                desk=link.desk,
                tells_steps=any(not r.get("counted") for r in predecessor.get("rounds") or ()),
                cleanup=cleanup.pop_all(),
            )

    def stop(self) -> None:
        """Wait for the last report to be written, for a while, and end the threads."""
        self.reporter.flush(FLUSH_SECONDS)
        self._cleanup.close()

    # What the job asks.

    def next_action(self) -> Action:
        """What the newest view of the job asks of this agent."""
        return self._decide()[0]

    def await_world(self) -> World | ExitReason:
        """Block until a newer world has this agent as a member, or the agent has to leave.

        Until then nothing runs here, so the node may be tested for a NodeCheck.
        """
        poll = select.poll()
        poll.register(self.watcher.fileno(), select.POLLIN)
        try:
            while True:
                action, view = self._decide()
                if action.verb is Verb.EXIT and action.reason is not None:
                    return action.reason
                if action.verb is Verb.START and view.world is not None:
                    return view.world
                if action.verb is Verb.STAND_BY and action.round is not None:
                    self.stand_by(action.round)
                elif self.reporter.latest.state is AgentState.RUNNING:
                    # torchrun's agent stopped what ran: Ready at the round that stands says "I left it".
                    self.stand_by(self.reporter.latest.observed_round)
                self._active_check.follow(view.active_check)
                poll.poll()
        finally:
            self._active_check.leave()  # no probe runs beside training processes

    def is_newest(self, world: World) -> bool:
        """Whether this agent is still to start the processes of that world."""
        return self.next_action() == Action(Verb.START, world.round)

    def is_settled(self) -> bool:
        """Whether all is as the job wants it."""
        return self.next_action() == WAIT

    def others_train(self) -> bool:
        """Whether a world stands that this agent is not in: nobody waits for it."""
        world = (self.watcher.take() or JobView()).world
        return (
            world is not None and world.phase is RendezvousPhase.FORMED and self.member not in world.members
        )

    def peers_are_dead(self) -> bool:
        """Whether a failure ended the round last joined, or one since: its collectives will not end."""
        newest, joined = (self.watcher.view() or JobView()).world, self._joined_world
        return newest is not None and joined is not None and newest.broken_round >= joined.round

    def planned_tier(self, action: Action, peers: Sequence[int] | None) -> KeptIn | None:
        """Return the tier for the last step if `action` ends the round last joined by plan; None if not.

        Args:
            peers: as `agent.facts.world.planned_tier` has them.
        """
        newest, joined = (self.watcher.view() or JobView()).world, self._joined_world
        if joined is None or self.peers_are_dead() or self.asks_where_it_hangs():
            return None
        return planned_tier(action, joined, newest, peers)

    def tier_of_a_stop(self, peers: Sequence[int] | None) -> KeptIn:
        """Return the tier for the last step of the round last joined, now that this Pod stops."""
        newest, joined = (self.watcher.view() or JobView()).world, self._joined_world
        if joined is None:
            return KeptIn.STORAGE
        return tier_of_a_stop(self.member, joined, newest, peers)

    def gone_before(self, world: World) -> frozenset[int]:
        """The ranks of the round last joined whose Pods are not in that world."""
        joined = self._joined_world
        stay = set(world.members)
        return frozenset(
            rank for rank, member in enumerate(joined.members if joined else ()) if member not in stay
        )

    def comes_after_failure(self, world: World) -> bool:
        """Whether the round last joined was broken by a failure; for who has joined none, the one before."""
        joined = self._joined_world
        return world.broken_round >= (joined.round if joined is not None else world.round - 1)

    def asks_where_it_hangs(self) -> bool:
        """Whether the round last joined is known to hang, and its members are asked where."""
        newest, joined = (self.watcher.view() or JobView()).world, self._joined_world
        return newest is not None and joined is not None and newest.hangs and newest.round == joined.round

    def awaits_judgement(self) -> bool:
        """Whether the hang of the round last joined is still to be judged, as far as this agent has heard."""
        action, view = self._decide()
        world, joined = view.world, self._joined_world
        if world is None or joined is None or world.round != joined.round or action.verb is Verb.EXIT:
            return False
        return world.hangs or world.phase is RendezvousPhase.FORMED

    def checkpoint_is_awaited(self) -> bool:
        """Whether workers that are ready wait for a checkpoint of the world to join."""
        world = (self.watcher.view() or JobView()).world
        return world is not None and world.awaits_checkpoint

    def hang_timeout_seconds(self) -> float:
        """Return the job's present time-out of hangs."""
        return (self.watcher.view() or JobView()).hang_timeout_seconds

    def asks_for_stacks(self) -> str:
        """What asks where the training processes are, as the job says it now; "" if nothing does."""
        return (self.watcher.view() or JobView()).asks_for_stacks

    def has_trained(self) -> bool:
        """Whether the job is known to have made a step."""
        return (self.watcher.view() or JobView()).has_trained

    def asks_for_profile(self) -> str:
        """What asks for a profile of one process, likewise."""
        return (self.watcher.view() or JobView()).asks_for_profile

    def part(self) -> Part:
        """What this agent is in the round last joined."""
        joined = self._joined_world
        if joined is None:
            return Part()
        return Part(joined.world_size, leads=joined.members[0] == self.member)

    def failures_per_hour(self) -> float | None:
        """Return the job's failures per hour, over its first hour at least; None without its start time."""
        view = self.watcher.view() or JobView()
        if view.started_at is None:
            return None
        hours = (datetime.now(timezone.utc) - view.started_at).total_seconds() / 3600
        return view.failures / max(hours, 1.0)

    def place(self) -> tuple[str, ...]:
        """Return this Pod's place: the topology domains of its node, the largest first, and the node."""
        levels = (self.watcher.view() or JobView()).topology_levels
        if levels and self._topology is None:
            self._topology = topology_of_pod(self._api, self.environment)
        shared = (self._topology or [])[:levels]
        return (*reversed(shared + [""] * (levels - len(shared))), self.environment.node_name)

    def api_silent_seconds(self) -> float:
        """How long the API server has not answered anything."""
        return self._api.silent_seconds()

    # What the agent reports.

    def begin_reports(self) -> None:
        """Report Ready, which promises to start processes at once; later calls do nothing."""
        if self.reporter.ident is None:
            self.reporter.start()

    def joined(self, world: World) -> None:
        """Report that the processes of `world` run."""
        self._joined_world = world
        self.reporter.report(AgentState.RUNNING, world.round)

    def stand_by(self, round_: int) -> None:
        """Report that nothing runs here any more, and that `round_` is known."""
        self.reporter.report(AgentState.READY, round_)

    def note_departure(self, step: int) -> None:
        """Have the next report say that the processes of the round last joined left after `step`, by vote."""
        if self._joined_world is not None:
            self.reporter.note_departure(Departure(self._joined_world.round, step))

    def _decide(self) -> tuple[Action, JobView]:
        view = self.watcher.take() or JobView()
        report = self.reporter.latest
        action = next_action(view.world, self.member, report.observed_round, report.state, view.phase)
        return action, view
