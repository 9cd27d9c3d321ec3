"""One agent's part in the votes of a round: its voter, and at rank 0 also the chair.

A pure state machine. Each method takes an event and the time, and returns the messages to send. Before the
caller sends them, it writes `order` for the processes and confirms this with `note_order`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from agent.supervision.vote import Chair, LocalProcesses, Message, MessageKind, Voter, VoteResult, VoteStage
from crds.checkpoint_files import KeptIn

Traffic = list[tuple[int, Message | None]]
"""Messages by connection, in order. None: the connection broke, or has to be closed."""


class Ballot:
    """The votes of one round.

    Args:
        size: number of agents of the round.
        chair_line: the connection to rank 0's agent; None at rank 0.
    """

    def __init__(self, size: int, chair_line: int | None) -> None:
        self._size = size
        self._chair_line = chair_line
        self._voter = Voter()
        self._chair = Chair(size) if chair_line is None else None
        if self._chair is not None:
            self._chair.join(0)
        self._outbox: deque[tuple[int, Message]] = deque()
        """Undelivered messages of the chair."""
        self._lines: dict[int, int] = {}
        """At rank 0, the connection to each other agent, by rank."""
        self._ranks: dict[int, int] = {}
        """Ranks by connection, the reverse of `_lines`."""
        self._traffic: Traffic = []

    @property
    def agreed(self) -> VoteResult | None:
        return self._voter.agreed

    @property
    def lost_at(self) -> float | None:
        """Time of the loss of an agent whose processes had not left."""
        return self._voter.lost_at

    @property
    def is_open(self) -> bool:
        """Whether a vote is open or was decided."""
        return self._voter.stage not in (VoteStage.NONE, VoteStage.CLOSED)

    @property
    def order(self) -> int:
        """Value of ORDER for the processes here."""
        return self._voter.order

    @property
    def wake_at(self) -> float | None:
        """Time by which `look` has to be called; None if nothing expires."""
        times = (self._voter.wake_at, self._chair.wake_at if self._chair is not None else None)
        return min((time for time in times if time is not None), default=None)

    def ask(self, tier: KeptIn, now: float, local: LocalProcesses) -> Traffic:
        """Ask for a vote; requires that the processes here take part."""
        self._to_chair(self._voter.ask(tier, now), now)
        return self._deliver(now, local)

    def note_left(self, now: float, local: LocalProcesses) -> Traffic:
        """Note that the processes here have left as agreed."""
        self._to_chair(self._voter.leave(), now)
        return self._deliver(now, local)

    def note_order(self, now: float) -> None:
        """Note that `order` is visible to the processes."""
        self._voter.note_order(now)

    def look(self, now: float, local: LocalProcesses, came: Iterable[tuple[int, Message | None]]) -> Traffic:
        """Process the received messages.

        Args:
            local: read no earlier than `now`.
            came: messages by connection; None where it broke.
        """
        self._voter.expire(now)
        if self._chair is not None:
            self._outbox.extend(self._chair.expire(now))
        for line, message in came:
            if message is None:
                self._lose(line, now)
            elif self._chair is None:
                self._to_chair(self._voter.receive(message, now, local), now)
            else:
                self._chair_receives(self._chair, line, message, now)
        self._to_chair(self._voter.look(now, local), now)
        return self._deliver(now, local)

    def close(self) -> None:
        """Take part in no further vote. Held processes go on; an agreed step stays their order."""
        self._voter.close()

    def _chair_receives(self, chair: Chair, line: int, message: Message, now: float) -> None:
        rank = self._ranks.get(line)
        if rank is not None:
            self._outbox.extend(chair.receive(rank, message, now))
        elif (
            message.kind is MessageKind.JOIN
            and 0 < message.number < self._size
            and message.number not in self._lines
        ):
            self._ranks[line], self._lines[message.number] = message.number, line
            chair.join(message.number)
        else:
            self._traffic.append((line, None))

    def _lose(self, line: int, now: float) -> None:
        if self._chair is None:
            self._voter.lose_chair(now)
        elif (rank := self._ranks.pop(line, None)) is not None:
            del self._lines[rank]
            self._outbox.extend(self._chair.lose(rank))

    def _to_chair(self, messages: list[Message], now: float) -> None:
        for message in messages:
            if self._chair is not None:
                self._outbox.extend(self._chair.receive(0, message, now))
            elif self._chair_line is not None:
                self._traffic.append((self._chair_line, message))

    def _deliver(self, now: float, local: LocalProcesses) -> Traffic:
        """Deliver the chair's messages in order, with the answers that they cause."""
        while self._outbox:
            rank, message = self._outbox.popleft()
            if rank == 0:
                self._to_chair(self._voter.receive(message, now, local), now)
            elif (line := self._lines.get(rank)) is not None:
                self._traffic.append((line, message))
        traffic, self._traffic = self._traffic, []
        return traffic
