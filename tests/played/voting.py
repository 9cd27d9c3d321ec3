"""An agent's votes, played: the product's `Ballot`, over connections that may break."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from agent.facts.world import AgentWorld
from agent.supervision.ballot import Ballot, Traffic
from agent.supervision.leaving import LeaveVote
from agent.supervision.vote import LocalProcesses, Message, MessageKind
from crds.checkpoint_files import KeptIn
from crds.progress_record import TAKES_PART
from tests.played.network import End, Faults, connect
from tests.played.schedule import Schedule

if TYPE_CHECKING:
    from tests.played.agent import Agent

CHAIR = 0
"""Name of the connection to rank 0's agent."""
Turn = Generator[None, None, None]
"""What an agent does at a time: it yields wherever a real one could be stopped."""


class PlayedBallot:
    """A ballot and its connections, with what an agent does for them: the glue of `LiveBallot`, without its sockets.

    Args:
        wake: is called when something has come.
        read: returns what the processes are like.
        set_order: gives the processes an order, one after the other.
    """

    def __init__(
        self,
        schedule: Schedule,
        size: int,
        rank: int,
        wake: Callable[[], object],
        read: Callable[[], LocalProcesses],
        set_order: Callable[[int], Turn],
    ) -> None:
        self.ballot = Ballot(size, None if rank == 0 else CHAIR)
        self.is_open = True
        self.ends: dict[int, End] = {}
        """Connections, by name."""
        self._schedule, self._rank = schedule, rank
        self._wake, self._read, self._set_order = wake, read, set_order
        self._came: Traffic = []
        self._order = self.ballot.order

    def take(self, other: PlayedBallot, faults: Faults) -> None:
        """Take the connection of another agent, as rank 0."""
        rank = other._rank
        if not (self.is_open and other.is_open):
            other.receive(CHAIR, None)
            return
        here = "chair", partial(self.receive, rank), partial(self.receive, rank, None)
        there = f"agent {rank}", partial(other.receive, CHAIR), partial(other.receive, CHAIR, None)
        self.ends[rank], other.ends[CHAIR] = connect(self._schedule, faults, here, there)
        other.ends[CHAIR].send(Message(MessageKind.JOIN, rank))

    def receive(self, line: int, message: Message | None) -> None:
        """Note a message, or the end of its connection."""
        self._came.append((line, message))
        self._wake()

    def hang_up(self) -> None:
        """Close the connections."""
        self.is_open = False
        for end in self.ends.values():
            end.close()

    def close(self) -> Turn:
        """Take part in no more votes."""
        self.ballot.close()
        yield from self.carry_out([])
        self.hang_up()

    def look(self, note: Callable[[Traffic], object] = len) -> Turn:
        """Take in what has come; `note` sees what is sent for it."""
        came, self._came = self._came, []
        now = self._schedule.now
        yield
        traffic = self.ballot.look(now, self._read(), came)
        note(traffic)
        yield from self.carry_out(traffic)

    def ask(self, tier: KeptIn) -> Turn:
        now = self._schedule.now
        yield
        yield from self.carry_out(self.ballot.ask(tier, now, self._read()))

    def note_left(self) -> Turn:
        return self.carry_out(self.ballot.note_left(self._schedule.now, self._read()))

    def carry_out(self, traffic: Traffic) -> Turn:
        yield
        if self._order != self.ballot.order:
            self._order = self.ballot.order
            yield from self._set_order(self._order)
        self.ballot.note_order(self._schedule.now)
        for line, message in traffic:
            if line in self.ends:
                if message is None:
                    self.ends[line].close()
                else:
                    self.ends[line].send(message)
            yield

    def vote(
        self,
        begun_at: float,
        exit_codes: Mapping[int, int],
        ended: Collection[int],
        *,
        wish: bool,
        peers_are_dead: bool,
        living: Collection[int] = (),
        lost: bool = False,
    ) -> LeaveVote:
        now, ballot = self._schedule.now, self.ballot
        return LeaveVote(
            ballot.is_open and self.is_open,
            wish,
            ballot.agreed,
            None if ballot.lost_at is None else now - ballot.lost_at,
            peers_are_dead,
            dict(exit_codes),
            tuple(ended),
            now - begun_at,
            None if ballot.wake_at is None else ballot.wake_at - now,
            frozenset(living),
            lost,
        )


def at_once(turn: Turn) -> None:
    """Do all of it at one moment."""
    deque(turn, maxlen=0)


class Votes:
    """The votes of one round of a played cluster's agent, as `agent.supervision.votes` has them."""

    def __init__(self, agent: Agent, world: AgentWorld, rank: int) -> None:
        self._agent, self._round = agent, world.round
        self.stay = False
        """The processes here live on where they leave now."""
        schedule = agent.cluster.schedule
        self._played = PlayedBallot(
            schedule, len(world.members), rank, agent.wake, self.read, self._set_order
        )
        self.ballot = self._played.ballot
        if rank == 0:
            for other in agent.callers.pop(world.round, []):
                self._take(other)
            return
        chair = agent.cluster.agent_of(world)
        if chair is None:
            self._played.receive(CHAIR, None)
        elif chair.votes is not None and chair.votes._round == world.round:
            chair.votes._take(self)
        else:
            chair.callers.setdefault(world.round, []).append(self)

    def _take(self, other: Votes) -> None:
        self._played.take(other._played, self._agent.cluster.disturbances.network)

    def close(self) -> None:
        """Take part in no more votes."""
        if self._played.is_open:
            at_once(self._played.close())

    def look(self) -> bool:
        """Take in what has come; whether there is a vote to take part in."""
        if self._played.is_open:
            at_once(self._played.look())
        return self._played.is_open and self.ballot.is_open

    def ask(self, tier: KeptIn) -> None:
        at_once(self._played.ask(tier))

    def note_left(self) -> None:
        at_once(self._played.note_left())

    def read(self) -> LocalProcesses:
        part = self._agent.running
        ended = -1 if part.step is None else part.step
        all_live = not part.exit_codes and not part.lost
        speaks = part.speaks == TAKES_PART
        return LocalProcesses(all_live, speaks, (ended,) * len(part.ranks), KeptIn.MEMORY, self.stay)

    def vote(self, begun_at: float, *, wish: bool) -> LeaveVote:
        agent = self._agent
        dead = agent.membership.standing.peers_are_dead
        codes = agent.running.exit_codes
        part, ended = agent.running, self.read().ended
        living = part.alive() if part.has_stayed else []
        return self._played.vote(
            begun_at, codes, ended, wish=wish, peers_are_dead=dead, living=living, lost=part.lost
        )

    def _set_order(self, order: int) -> Turn:
        part = self._agent.part
        if part is not None:
            part.order = order
            if self._agent.training is not None:
                self._agent.training.look_soon()
        yield
