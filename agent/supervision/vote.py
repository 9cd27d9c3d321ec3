"""Leaving by vote: how the agents of a round have all its ranks stop after the same step.

The agent of rank 0 is the chair. Pure state machines: what comes in and the time, what goes out.

1. An agent asks for a vote. The chair opens it: all agents hold their processes, which wait at the end of the
   step they are in.
2. Each agent answers with the highest step that any of its processes has ended. By then none can begin more
   than the step after it.
3. When all have answered, the chair names the step after the highest of these. Nobody is beyond it, since
   whoever has not ended it is in it or held before it. All go on to it, and leave.

No process has to get anywhere before the answer, so a step may take minutes, and a vote takes milliseconds.
It works whether or not ranks wait for each other in each step. An agent that cannot take part, since its
processes do not or one of them has ended, calls the vote off; so does the chair when an agent is lost or does
not answer in time. Then all go on, and whoever has to stop does so in the old way.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, IntEnum
from typing import NamedTuple

from crds.checkpoint_files import KeptIn
from crds.progress_record import GO_ON, hold_until, leave_at

DECISION_SECONDS = 5.0
"""How long the chair waits for all answers."""
HOLD_SECONDS = 2 * DECISION_SECONDS
"""How long an agent holds its processes, at most: who hears nothing for so long goes on."""
SLACK_SECONDS = 1.0
"""So much longer a process waits by itself, if its agent does not even say to go on."""
SETTLE_SECONDS = 0.001
"""From when processes can see that they are held until what they have ended is read: until then, one that
did not see it has told of the step before which it looked."""


class Kind(IntEnum):
    """What a message says."""

    ASK = 1
    """To the chair: open a vote. With a tier."""
    HOLD = 2
    """Message of the chair: vote `number` is open."""
    ENDED = 3
    """To the chair: the processes here have ended `step`, and none can go beyond the next. With the tier in
    which all of them can keep a step."""
    CANNOT = 4
    """To the chair: the processes here cannot take part."""
    LEAVE = 5
    """Message of the chair: all leave after `step`, which is kept in the tier."""
    OFF = 6
    """Message of the chair: nobody leaves by this vote."""
    JOIN = 7
    """To the chair, before all else: the agent of rank `number` is here."""
    LEFT = 8
    """To the chair: the processes here have left as was agreed. From the chair: those of its agent have."""
    LOST = 9
    """Message of the chair: an agent was lost whose processes had not left."""


class Message(NamedTuple):
    kind: Kind
    number: int = 0
    step: int = 0
    tier: int = 0


class Agreed(NamedTuple):
    """What was decided."""

    step: int
    tier: KeptIn


Sent = list[tuple[int, Message]]
"""Messages of the chair, each with the rank of the agent that it is for."""


class Chair:
    """Counts the answers of the agents of ranks 0 to `size` - 1."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._present: set[int] = set()
        self._to_leave: set[int] = set()
        """Who will say that its processes have left, and has not said so."""
        self._number = 0
        self._tier = KeptIn.MEMORY
        self._answers: dict[int, int] | None = None
        """By rank, of the vote that is open; None if none is."""
        self._deadline = 0.0
        self._decided = False

    @property
    def deadline(self) -> float | None:
        """When it wants to look again."""
        return self._deadline if self._answers is not None else None

    def join(self, rank: int) -> None:
        """The agent of that rank can be reached."""
        self._present.add(rank)
        self._to_leave.add(rank)

    def lose(self, rank: int) -> Sent:
        """The agent has left, or its connection broke."""
        self._present.discard(rank)
        if self._decided and rank in self._to_leave:
            return self._to_all(Message(Kind.LOST))
        return self._call_off()

    def receive(self, rank: int, message: Message, now: float) -> Sent:
        if message.kind is Kind.ASK:
            return self._ask(rank, KeptIn(message.tier), now)
        if message.kind is Kind.LEFT:
            self._to_leave.discard(rank)
            return self._to_all(Message(Kind.LEFT)) if rank == 0 else []
        if self._answers is None or message.number != self._number:
            return []
        if message.kind is not Kind.ENDED:
            return self._call_off()
        self._answers[rank] = message.step
        self._tier = max(self._tier, KeptIn(message.tier))
        if len(self._answers) < self._size:
            return []
        step = max(self._answers.values()) + 1
        self._answers, self._decided = None, True
        return self._to_all(Message(Kind.LEAVE, self._number, step, self._tier))

    def look(self, now: float) -> Sent:
        return self._call_off() if self._answers is not None and now >= self._deadline else []

    def _ask(self, rank: int, tier: KeptIn, now: float) -> Sent:
        if self._decided:
            return []  # whoever asks has been told
        if self._answers is not None:
            self._tier = max(self._tier, tier)
            return []
        self._number += 1
        if len(self._present) < self._size:
            return [(rank, Message(Kind.OFF, self._number))]
        self._tier, self._answers, self._deadline = tier, {}, now + DECISION_SECONDS
        return self._to_all(Message(Kind.HOLD, self._number))

    def _call_off(self) -> Sent:
        if self._answers is None:
            return []
        self._answers = None
        return self._to_all(Message(Kind.OFF, self._number))

    def _to_all(self, message: Message) -> Sent:
        return [(rank, message) for rank in sorted(self._present)]


class Stage(Enum):
    """How far an agent is with a vote."""

    NONE = "none"
    ASKED = "asked"
    HELD = "held"
    """The processes are held, and what they have ended is still to be read."""
    ANSWERED = "answered"
    AGREED = "agreed"
    CLOSED = "closed"
    """There will be no vote in this round any more."""


class Voter:
    """One agent's part. Its messages are for the chair."""

    def __init__(self) -> None:
        self.stage = Stage.NONE
        self.agreed: Agreed | None = None
        self.lost_at: float | None = None
        """Since when another agent is known to be lost whose processes had not left as it was agreed."""
        self._chair_is_to_leave = False
        """The chair will say that the processes of its own agent have left, and has not said so."""
        self._number = 0
        self._deadline = 0.0

    @property
    def deadline(self) -> float | None:
        """When it wants to look again."""
        return self._deadline if self.stage in (Stage.ASKED, Stage.HELD, Stage.ANSWERED) else None

    @property
    def order(self) -> int:
        """What the processes here are told in ORDER."""
        if self.agreed is not None:
            return leave_at(*self.agreed)
        held = self.stage in (Stage.HELD, Stage.ANSWERED)
        return hold_until(self._deadline + SLACK_SECONDS) if held else GO_ON

    def ask(self, tier: KeptIn, now: float) -> list[Message]:
        """Ask for a vote; one that is open will do, and then it counts where the asked tier is safer."""
        if self.stage in (Stage.AGREED, Stage.CLOSED):
            return []
        if self.stage is Stage.NONE:
            self.stage, self._deadline = Stage.ASKED, now + HOLD_SECONDS
        return [Message(Kind.ASK, tier=tier)]

    def receive(self, message: Message, now: float, *, can_take_part: bool) -> list[Message]:
        """Take a message of the chair.

        Args:
            can_take_part: all processes here live, and look at ORDER.
        """
        if self.stage is Stage.AGREED:
            if message.kind is Kind.LEFT:
                self._chair_is_to_leave = False
            elif message.kind is Kind.LOST and self.lost_at is None:
                self.lost_at = now
            return []
        if message.kind is Kind.HOLD:
            self._chair_is_to_leave = True
            if not can_take_part or self.stage is Stage.CLOSED:
                return [Message(Kind.CANNOT, message.number)]
            self.stage, self._number, self._deadline = Stage.HELD, message.number, now + HOLD_SECONDS
        elif message.kind is Kind.LEAVE:
            if self.stage is Stage.ANSWERED and message.number == self._number:
                self.stage, self.agreed = Stage.AGREED, Agreed(message.step, KeptIn(message.tier))
        elif message.kind is Kind.OFF and self.stage is not Stage.CLOSED:
            self.stage = Stage.NONE
        return []

    def answer(self, ended: Collection[int], keep_in: KeptIn) -> list[Message]:
        """Answer with what the processes have ended.

        Args:
            ended: by BOUNDARY of each, read after all of them could see that they are held.
            keep_in: where all of them can keep a step.
        """
        self.stage = Stage.ANSWERED
        return [Message(Kind.ENDED, self._number, max(ended), keep_in)]

    def lose_process(self) -> list[Message]:
        """A process here has ended, in a vote that was not decided as far as is known."""
        return [Message(Kind.CANNOT, self._number)] if self.stage in (Stage.HELD, Stage.ANSWERED) else []

    def leave(self) -> list[Message]:
        """The processes here have left as it was agreed."""
        return [Message(Kind.LEFT)]

    def lose_chair(self, now: float) -> None:
        """Its agent has left, or the connection broke."""
        if self.stage is Stage.AGREED and self._chair_is_to_leave and self.lost_at is None:
            self.lost_at = now
        self.close()

    def look(self, now: float) -> None:
        """Go on if the chair has been silent for too long."""
        if self.deadline is not None and now >= self.deadline:
            self.close()

    def close(self) -> None:
        """Take part in nothing more: this agent goes its own way.

        What was agreed stays.
        """
        if self.stage is not Stage.AGREED:
            self.stage = Stage.CLOSED
