"""An agent's votes in a played cluster: the product's `Ballot` and `decide`, over connections that may break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.facts.world import World
from agent.supervision.ballot import Ballot, Traffic
from agent.supervision.leaving import Vote
from agent.supervision.vote import Kind, LocalProcesses, Message
from crds.checkpoint_files import KeptIn
from crds.progress_record import TAKES_PART
from tests.played.network import End, connect

if TYPE_CHECKING:
    from tests.played.agent import Agent

CHAIR = 0
"""Name of the connection to rank 0's agent."""


class Votes:
    """The ballot of one round, as `agent.supervision.votes` has it."""

    def __init__(self, agent: Agent, world: World, rank: int) -> None:
        self._agent, self._world = agent, world
        self.ballot = Ballot(len(world.members), None if rank == 0 else CHAIR)
        self._ends: dict[int, End] = {}
        self._came: Traffic = []
        self.is_open = True
        if rank == 0:
            for other, its_rank in agent.callers.pop(world.round, []):
                self.take(other, its_rank)
        else:
            chair = agent.cluster.agent_of(world)
            if chair is None:
                self._came.append((CHAIR, None))
            elif chair.votes is not None and chair.votes._world.round == world.round:
                chair.votes.take(self, rank)
            else:
                chair.callers.setdefault(world.round, []).append((self, rank))

    def take(self, other: Votes, rank: int) -> None:
        """Take the connection of another agent, as rank 0."""
        if not (self.is_open and other.is_open):
            other._receive(CHAIR, None)
            return
        cluster = self._agent.cluster
        here = f"{self._agent}", lambda it: self._receive(rank, it), lambda: self._receive(rank, None)
        there = f"{other._agent}", lambda it: other._receive(CHAIR, it), lambda: other._receive(CHAIR, None)
        faults = cluster.disturbances.network
        self._ends[rank], other._ends[CHAIR] = connect(cluster.schedule, faults, here, there)
        other._ends[CHAIR].send(Message(Kind.JOIN, rank))

    def close(self) -> None:
        """Take part in no more votes."""
        if self.is_open:
            self.is_open = False
            self.ballot.close()
            self._write_order()
            for end in self._ends.values():
                end.close()

    def look(self) -> bool:
        """Take in what has come; whether there is a vote to take part in."""
        if not self.is_open:
            return False
        came, self._came = self._came, []
        self._carry_out(self.ballot.look(self._agent.now, self.read(), came))
        return self.ballot.is_open

    def ask(self, tier: KeptIn) -> None:
        self._carry_out(self.ballot.ask(tier, self._agent.now, self.read()))

    def note_left(self) -> None:
        self._carry_out(self.ballot.note_left(self._agent.now, self.read()))

    def read(self) -> LocalProcesses:
        part = self._agent.running
        ended = -1 if part.step is None else part.step
        all_live = not part.exit_codes
        return LocalProcesses(all_live, part.speaks == TAKES_PART, (ended,) * len(part.ranks), KeptIn.MEMORY)

    def vote(self, begun_at: float, *, wish: bool) -> Vote:
        now, ballot = self._agent.now, self.ballot
        return Vote(
            ballot.is_open and self.is_open,
            wish,
            ballot.agreed,
            None if ballot.lost_at is None else now - ballot.lost_at,
            self._agent.membership.standing.peers_are_dead,
            dict(self._agent.running.exit_codes),
            self.read().ended,
            now - begun_at,
            None if ballot.wake_at is None else ballot.wake_at - now,
        )

    def _receive(self, line: int, message: Message | None) -> None:
        self._came.append((line, message))
        self._agent.wake()

    def _carry_out(self, traffic: Traffic) -> None:
        self._write_order()
        for line, message in traffic:
            if line in self._ends:
                if message is None:
                    self._ends[line].close()
                else:
                    self._ends[line].send(message)

    def _write_order(self) -> None:
        part = self._agent.part
        if part is None:
            return
        if part.order != self.ballot.order:
            part.order = self.ballot.order
            if self._agent.training is not None:
                self._agent.training.look_soon()
        self.ballot.note_order(self._agent.now)
