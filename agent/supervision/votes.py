"""The votes of an agent: one ballot for each round."""

from __future__ import annotations

import logging
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from agent.checkpoints.holder import CheckpointHolder
from agent.connection.listener import Inbox, Listener
from agent.facts.world import AgentVerb, AgentWorld, NextAction
from agent.membership import WorldMembership
from agent.processes.processes import TrainingProcesses
from agent.report.reporter import Reporter
from agent.signals import deferred
from agent.supervision.leaving import (
    Graces,
    LeaveVote,
    StopLate,
    VoteOutcome,
    WaitForVote,
    decide,
    may_stay,
)
from agent.supervision.live_ballot import LiveBallot, ProcessWords, connect, service
from agent.survival.kept import KeptProcesses
from crds.agent_report import Departure
from crds.checkpoint_files import KeptIn

logger = logging.getLogger(__name__)


class Votes:
    """The votes of this agent's rounds.

    Args:
        listener: this agent's listener, with the job's key.
        memory: this agent's checkpoints in memory; None if it keeps none.
        kept: the processes that live on into the next round.
        stop_grace_seconds: time from the decision to stop the processes to SIGKILL.
        failure_grace_seconds: the same, if the processes of other agents are dead.
    """

    def __init__(
        self,
        membership: WorldMembership,
        reporter: Reporter,
        listener: Listener,
        memory: CheckpointHolder | None,
        kept: KeptProcesses,
        stop_grace_seconds: float,
        failure_grace_seconds: float,
    ) -> None:
        self._membership = membership
        self._reporter = reporter
        self._listener = listener
        self._memory = memory
        self._kept = kept
        self._graces = Graces(stop_grace_seconds, failure_grace_seconds)
        self._world: AgentWorld | None = None
        """The newest world whose members have met."""
        self._inbox: Inbox | None = None
        """Connections of the other agents, at rank 0."""
        self._ballot: LiveBallot | None = None

    # The rounds.

    def meet(self, world: AgentWorld) -> None:
        """Note a world whose members have met; as rank 0, begin to accept connections."""
        self.end()
        self._world = world
        if world.members.index(self._membership.member) == 0:
            self._inbox = Inbox()
            self._listener.offer(service(world.round), self._inbox.put)

    def begin(self, records: Sequence[Path]) -> None:
        """Open the round's ballot, after its processes have been started.

        By then rank 0's agent accepts connections, since torch's agents have exchanged their ranks.

        Args:
            records: the progress records of the processes.
        """
        world = self._world
        assert world is not None
        rank = world.members.index(self._membership.member)
        line, self._inbox = self._inbox or connect(world, rank, self._listener.key), None
        if line is None:
            return
        try:
            self._ballot = LiveBallot(len(world.members), line, ProcessWords(records))
        except OSError as error:  # training goes on without votes
            logger.warning("no votes in this round: %s", error)
            line.close()

    def end(self) -> None:
        """Take part in no more votes of the round. May be called again."""
        if self._world is not None:
            self._listener.withdraw(service(self._world.round))
        if self._inbox is not None:
            self._inbox.close()
        if self._ballot is not None:
            self._ballot.close()
        self._inbox = self._ballot = None

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when `look` has something to do."""
        return [self._ballot.fileno()] if self._ballot is not None else []

    def look(self, processes: TrainingProcesses) -> bool:
        """Receive and answer messages; return whether a vote is open or was decided."""
        if self._ballot is None:
            return False
        with deferred():
            self._ballot.look(all_live=self._all_live(processes))
        return self._ballot.ballot.is_open

    # One vote.

    def follow(self, processes: TrainingProcesses, action: NextAction, begun_at: float) -> VoteOutcome:
        """Leave by vote for a planned change, or at another agent's request.

        Args:
            begun_at: start of the grace, by the monotonic clock.
        """
        tier = self._membership.standing.planned_tier(action, self._peers())
        if tier is not None and self._memory is not None:
            self._memory.note_plan()
        if self._ballot is not None:
            self._ballot.stay = self._stay(processes, action)
        called = self.look(processes) and action.verb is AgentVerb.WAIT
        if not called and tier is None:
            return VoteOutcome.OFF
        return self.leave(processes, tier, begun_at)

    def stop(self, processes: TrainingProcesses, begun_at: float) -> VoteOutcome:
        """Have all leave by vote, since this agent's Pod stops; the grace began at `begun_at`."""
        if self._ballot is not None:
            self._ballot.stay = False
        return self.leave(processes, self._membership.standing.tier_of_a_stop(self._peers()), begun_at)

    def hand_over(self, seconds: float) -> None:
        """Wait at most this long until another Pod has copied the checkpoints in memory."""
        if self._memory is not None:
            self._memory.replicas.hand_over(seconds)

    def leave(self, processes: TrainingProcesses, tier: KeptIn | None, begun_at: float) -> VoteOutcome:
        """Have the processes of all agents leave after the same step, or join in another agent's vote.

        Args:
            tier: ask for a vote, and for its step to be kept there; None if another agent has asked.
            begun_at: start of the grace, by the monotonic clock.
        """
        ballot = self._ballot
        if ballot is None or (tier is not None and not ballot.read(all_live=True).take_part):
            return VoteOutcome.OFF
        if tier is not None:
            self.look(processes)  # agents that have just connected take part
            with deferred():
                ballot.ask(tier, all_live=self._all_live(processes))
        while True:
            self.look(processes)
            found = self._vote(ballot, processes, begun_at, wish=tier is not None)
            decision = decide(found, self._graces)
            if isinstance(decision, WaitForVote):
                self._wait(processes, decision.seconds)
                continue
            if isinstance(decision, StopLate):
                step = found.agreed.step if found.agreed is not None else None
                logger.warning("not all processes have left after step %s in time", step)
                processes.stop(signal.SIGTERM, decision.grace_seconds)
                return VoteOutcome.STOPPED
            if decision in (VoteOutcome.LEFT, VoteOutcome.STAYED):
                with deferred():
                    ballot.note_left()
                self._note(found)
            return decision

    def have_left(self, processes: TrainingProcesses) -> list[int]:
        """Return the local ranks of the processes that have left as agreed."""
        if self._ballot is None or self._ballot.ballot.agreed is None:
            return []
        processes.collect_exits()
        return self._vote(self._ballot, processes, 0.0, wish=False).have_left

    def _all_live(self, processes: TrainingProcesses) -> bool:
        """Whether all processes here run, and none has lost a peer."""
        return len(processes.alive()) == len(processes.pids) and not self._kept.lost(processes)

    def _stay(self, processes: TrainingProcesses, action: NextAction) -> bool:
        """Whether the processes here live on if they leave now: all can, and a world awaits them."""
        assert self._world is not None
        world = self._membership.standing.newest if action.verb is AgentVerb.START else None
        if self._kept.go_into_any_world(processes):
            world = None  # its size does not matter
        next_size = None if world is None else len(world.members)
        return may_stay(action, len(self._world.members), next_size) and self._kept.all_live_on(processes)

    def _vote(
        self, live: LiveBallot, processes: TrainingProcesses, begun_at: float, *, wish: bool
    ) -> LeaveVote:
        ballot, now = live.ballot, time.monotonic()
        return LeaveVote(
            ballot.is_open,
            wish,
            ballot.agreed,
            None if ballot.lost_at is None else now - ballot.lost_at,
            self._membership.standing.peers_are_dead,
            processes.exit_codes,  # as the ballot has seen them; `_wait` notices later ones
            live.ended(),
            now - begun_at,
            None if ballot.wake_at is None else ballot.wake_at - now,
            self._kept.have_left(processes),
            bool(self._kept.lost(processes)),
        )

    def _wait(self, processes: TrainingProcesses, seconds: float) -> None:
        """Wait at most this long until the vote, the processes or the world change."""
        poll = select.poll()
        for fd in (*self.fds(), *self._kept.fds(), *processes.exit_fds(), self._membership.fileno()):
            poll.register(fd, select.POLLIN)
        poll.poll(seconds * 1000 + 1)
        self._membership.next_action()  # reads the news, on which `peers_are_dead` depends

    def _note(self, vote: LeaveVote) -> None:
        """Report the departure, unless training has just ended."""
        assert self._world is not None and vote.agreed is not None
        step, tier = vote.agreed
        if vote.have_left:
            logger.info("the processes have left after step %d, kept in %s", step, tier.name.lower())
            self._reporter.note_departure(Departure(self._world.round, step))
            if self._memory is not None and tier is KeptIn.MEMORY:
                self._memory.replicas.depart(step)

    def _peers(self) -> Sequence[int] | None:
        """Return each agent's peer, which has copies of its checkpoints; None if there are no copies."""
        return self._memory.replicas.peers if self._memory is not None else None
