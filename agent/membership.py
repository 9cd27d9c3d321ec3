"""An agent's place in its job: the round that it joined last, the newest one, and the action that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from agent.facts.arrival import Arrival
from agent.facts.world import (
    WAIT,
    AgentVerb,
    AgentWorld,
    ExitReason,
    Member,
    NextAction,
    WorldView,
    next_action,
    planned_tier,
    tier_of_a_stop,
)
from agent.kube.watcher import Watcher
from agent.report.reporter import Reporter
from crds.agent_report import AgentState
from crds.checkpoint_files import KeptIn
from crds.phases import RendezvousPhase


@dataclass(frozen=True)
class RoundStanding:
    """One agent's position between the round that it joined last and the newest world."""

    member: Member
    joined: AgentWorld | None = None
    newest: AgentWorld | None = None

    @property
    def peers_are_dead(self) -> bool:
        """Whether a failure has ended the round last joined, or a later one: its collectives will not end."""
        joined, newest = self.joined, self.newest
        return newest is not None and joined is not None and newest.broken_round >= joined.round

    @property
    def asks_where_it_hangs(self) -> bool:
        """Whether the round last joined hangs, and its members have to report where."""
        joined, newest = self.joined, self.newest
        return newest is not None and joined is not None and newest.hangs and newest.round == joined.round

    @property
    def is_ended_by_plan(self) -> bool:
        """Whether a planned change, not a failure, ends the round last joined."""
        joined, newest = self.joined, self.newest
        if newest is None or joined is None or self.peers_are_dead or self.asks_where_it_hangs:
            return False
        return newest.round > joined.round or newest.phase is not RendezvousPhase.FORMED

    @property
    def others_train(self) -> bool:
        """Whether the newest world is formed without this agent, so that no other agent waits for it."""
        newest = self.newest
        return (
            newest is not None
            and newest.phase is RendezvousPhase.FORMED
            and self.member not in newest.members
        )

    def awaits_judgement(self, action: NextAction) -> bool:
        """Whether the controller has not judged the hang of the round last joined yet."""
        joined, newest = self.joined, self.newest
        if newest is None or joined is None or newest.round != joined.round or action.verb is AgentVerb.EXIT:
            return False
        return newest.hangs or newest.phase is RendezvousPhase.FORMED

    def planned_tier(self, action: NextAction, peers: Sequence[int] | None) -> KeptIn | None:
        """Return the tier for the last step if `action` ends the round last joined by plan; None if not.

        Args:
            peers: see `agent.facts.world.planned_tier`.
        """
        if self.joined is None or self.peers_are_dead or self.asks_where_it_hangs:
            return None
        return planned_tier(action, self.joined, self.newest, peers)

    def tier_of_a_stop(self, peers: Sequence[int] | None) -> KeptIn:
        """Return the tier for the last step of the round last joined, now that this Pod stops."""
        if self.joined is None:
            return KeptIn.STORAGE
        return tier_of_a_stop(self.member, self.joined, self.newest, peers)

    def gone_before(self, world: AgentWorld) -> frozenset[int]:
        """Return the ranks of the round last joined whose Pods are not in that world."""
        members = self.joined.members if self.joined else ()
        stay = set(world.members)
        return frozenset(rank for rank, member in enumerate(members) if member not in stay)

    def comes_after_failure(self, world: AgentWorld) -> bool:
        """Whether the round last joined was broken by a failure; for a newcomer, the round before `world`."""
        return world.broken_round >= (self.joined.round if self.joined is not None else world.round - 1)


class WorldMembership:
    """One agent's membership in the worlds of its job. Only for the main thread, except `view`."""

    def __init__(
        self,
        member: Member,
        watcher: Watcher[WorldView],
        reporter: Reporter,
        arrival: Arrival | None = None,
    ) -> None:
        self.member = member
        self._watcher = watcher
        self._reporter = reporter
        self._joined: AgentWorld | None = None
        self.arrival = arrival or Arrival()
        """Times of this agent's arrival in its newest round."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable with news of the job, until the next `look`."""
        return self._watcher.fileno()

    @property
    def view(self) -> WorldView:
        """Newest view of the job."""
        return self._watcher.view() or WorldView()

    @property
    def standing(self) -> RoundStanding:
        return RoundStanding(self.member, self._joined, self.view.world)

    @property
    def round(self) -> int:
        """Highest round that this agent has acted on."""
        return self._reporter.latest.observed_round

    def look(self) -> tuple[NextAction, WorldView]:
        """Read the news of the job; return the agent's next action, with the view."""
        view, report = self._watcher.take() or WorldView(), self._reporter.latest
        action = next_action(view.world, self.member, report.observed_round, report.state, view.phase)
        return action, view

    def next_action(self) -> NextAction:
        """Read the news of the job; return the agent's next action."""
        return self.look()[0]

    def next_world(self) -> AgentWorld | ExitReason | None:
        """Read the news of the job while no process runs; return the world to join, a reason to leave, or
        None.

        It also reports the agent's state to the controller.
        """
        action, view = self.look()
        if action.verb is AgentVerb.EXIT and action.reason is not None:
            return action.reason
        if action.verb is AgentVerb.START and view.world is not None:
            self.arrival.note_world(datetime.now(timezone.utc))
            return view.world
        if action.verb is AgentVerb.STAND_BY:
            self.stand_by(action.round)
        elif self._reporter.latest.state is AgentState.RUNNING:
            # torchrun's agent has stopped its processes: Ready at this round means that it was left.
            self.stand_by()
        return None

    def is_settled(self) -> bool:
        """Whether nothing has to change here."""
        return self.next_action() == WAIT

    def join(self, world: AgentWorld) -> None:
        """Report that the processes of `world` run."""
        self._joined = world
        self._reporter.report(AgentState.RUNNING, world.round)

    def stand_by(self, round_: int | None = None) -> None:
        """Report that no process runs here any more, and that `round_` is observed; None for the last one."""
        self._reporter.report(AgentState.READY, round_)
