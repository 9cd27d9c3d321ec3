"""Leaving by vote: the agents of a round agree on a step after which all ranks stop.

The agent of rank 0 is the chair. Chair and voter are pure state machines: they take events and the time, and
return messages.

1. An agent asks for a vote. The chair opens it: all agents hold their processes, which wait at the end of
   their current step.
2. Each agent answers with the highest step that any of its processes has ended. None of them can begin more
   than the step after it.
3. When all have answered, the chair names the step after the highest of these. No process is beyond it: each
   is in it, or held before it. All go on to it, and leave.

An answer waits for no process, so a step may take minutes, while a vote takes milliseconds. A vote works
whether or not ranks wait for each other in each step. An agent that cannot take part, since its processes do
not or one of them has ended, calls the vote off; so does the chair when an agent is lost or does not answer
in time. Then all processes go on, and those that have to stop are stopped by signal.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from crds.checkpoint_files import KeptIn
from crds.progress_record import GO_ON, hold_until, leave_at, stay_at

DECISION_SECONDS = 5.0
"""Time that the chair waits for all answers."""
HOLD_SECONDS = 2 * DECISION_SECONDS
"""Time limit for an agent to hold its processes without a message of the chair."""
SLACK_SECONDS = 1.0
"""Extra time after which a held process goes on by itself, if its agent has not released it."""
SETTLE_SECONDS = 0.001
"""Time from the order to hold until BOUNDARY is read. If a process looked just before the order, its step is
visible in BOUNDARY by then."""


class MessageKind(IntEnum):
    """Kind of a message."""

    ASK = 1
    """To the chair: open a vote. With a tier."""
    HOLD = 2
    """Message of the chair: vote `number` is open."""
    ENDED = 3
    """To the chair: the processes here have ended `step`, and none can go beyond the next. With the safest
    tier that they or their agent ask for."""
    CANNOT = 4
    """To the chair: the processes here cannot take part."""
    LEAVE = 5
    """Message of the chair: all leave after `step`, and keep it in the tier."""
    OFF = 6
    """Message of the chair: nobody leaves by this vote."""
    JOIN = 7
    """To the chair, before all else: the agent of rank `number` is here."""
    LEFT = 8
    """To the chair: the processes here have left as agreed. From the chair: those of its agent have."""
    LOST = 9
    """Message of the chair: an agent was lost before its processes had left."""


class Message(NamedTuple):
    kind: MessageKind
    number: int = 0
    step: int = 0
    tier: int = 0


class VoteResult(NamedTuple):
    """Decision of a vote."""

    step: int
    tier: KeptIn


class LocalProcesses(NamedTuple):
    """State of the training processes of one agent at one moment."""

    all_live: bool
    """None of them has ended."""
    take_part: bool
    """All of them look at ORDER after each step."""
    ended: tuple[int, ...]
    """Last step that each has ended; -1 before its first."""
    keep_in: KeptIn
    """Safest tier that one of them asks for; all can keep a step there."""
    stay: bool = False
    """They will live on into the next round if they leave now."""


Sent = list[tuple[int, Message]]
"""Messages of the chair, each with the rank of its receiver."""


class Chair:
    """Counts the answers of the agents of ranks 0 to `size` - 1."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._present: set[int] = set()
        self._to_leave: set[int] = set()
        """Ranks of the agents that have not reported yet that their processes have left."""
        self._number = 0
        self._tier = KeptIn.MEMORY
        self._answers: dict[int, int] | None = None
        """Answers to the open vote, by rank; None if no vote is open."""
        self._deadline = 0.0
        self._decided = False

    @property
    def wake_at(self) -> float | None:
        """Time by which `expire` has to be called; None if no vote is open."""
        return self._deadline if self._answers is not None else None

    def join(self, rank: int) -> None:
        """Note that the agent of that rank can be reached."""
        self._present.add(rank)
        self._to_leave.add(rank)

    def lose(self, rank: int) -> Sent:
        """Note that the agent has left, or that its connection broke."""
        self._present.discard(rank)
        if self._decided and rank in self._to_leave:
            return self._to_all(Message(MessageKind.LOST))
        return self._call_off()

    def receive(self, rank: int, message: Message, now: float) -> Sent:
        """Process a message of an agent."""
        if message.kind is MessageKind.ASK:
            return self._ask(rank, KeptIn(message.tier), now)
        if message.kind is MessageKind.LEFT:
            self._to_leave.discard(rank)
            return self._to_all(Message(MessageKind.LEFT)) if rank == 0 else []
        if self._answers is None or message.number != self._number:
            return []
        if message.kind is not MessageKind.ENDED:
            return self._call_off()
        self._answers[rank] = message.step
        self._tier = max(self._tier, KeptIn(message.tier))
        if len(self._answers) < self._size:
            return []
        step = max(self._answers.values()) + 1
        self._answers, self._decided = None, True
        return self._to_all(Message(MessageKind.LEAVE, self._number, step, self._tier))

    def expire(self, now: float) -> Sent:
        """Call the vote off if not all have answered in time."""
        return self._call_off() if self._answers is not None and now >= self._deadline else []

    def _ask(self, rank: int, tier: KeptIn, now: float) -> Sent:
        if self._decided:
            return []  # all agents have the step already
        if self._answers is not None:
            self._tier = max(self._tier, tier)
            return []
        self._number += 1
        if len(self._present) < self._size:
            return [(rank, Message(MessageKind.OFF, self._number))]
        self._tier, self._answers, self._deadline = tier, {}, now + DECISION_SECONDS
        return self._to_all(Message(MessageKind.HOLD, self._number))

    def _call_off(self) -> Sent:
        if self._answers is None:
            return []
        self._answers = None
        return self._to_all(Message(MessageKind.OFF, self._number))

    def _to_all(self, message: Message) -> Sent:
        return [(rank, message) for rank in sorted(self._present)]


class VoteStage(Enum):
    """State of an agent in a vote."""

    NONE = "none"
    ASKED = "asked"
    HELD = "held"
    """The processes are held, but BOUNDARY is not read yet."""
    ANSWERED = "answered"
    AGREED = "agreed"
    CLOSED = "closed"
    """The agent takes part in no further vote of this round."""


class Voter:
    """One agent's part in a vote. Its messages go to the chair."""

    def __init__(self) -> None:
        self.stage = VoteStage.NONE
        self.agreed: VoteResult | None = None
        self._stay = False
        """The processes here live on after the agreed step."""
        self.lost_at: float | None = None
        """Time of the loss of an agent whose processes had not left as agreed."""
        self._chair_is_to_leave = False
        """The chair has not reported yet that the processes of its own agent have left."""
        self._number = 0
        self._deadline = 0.0
        self._read_at: float | None = None
        """Time to read BOUNDARY; None before the order to hold is visible."""
        self._has_refused = False
        """The agent has informed the chair that it cannot take part in this vote after all."""
        self._wish = KeptIn.MEMORY
        """Safest tier that this agent has asked for; it counts in a later vote too."""

    @property
    def wake_at(self) -> float | None:
        """Time by which `look` and `expire` have to be called; None if nothing expires."""
        if self.stage is VoteStage.HELD and self._read_at is not None and not self._has_refused:
            return self._read_at
        return self._deadline if self.stage in (VoteStage.ASKED, VoteStage.HELD, VoteStage.ANSWERED) else None

    @property
    def order(self) -> int:
        """Value of ORDER for the processes here."""
        if self.agreed is not None:
            return stay_at(*self.agreed) if self._stay else leave_at(*self.agreed)
        held = self.stage in (VoteStage.HELD, VoteStage.ANSWERED)
        return hold_until(self._deadline + SLACK_SECONDS) if held else GO_ON

    def ask(self, tier: KeptIn, now: float) -> list[Message]:
        """Ask for a vote, or for a safer tier in the open one."""
        if self.stage in (VoteStage.AGREED, VoteStage.CLOSED):
            return []
        self._wish = max(self._wish, tier)
        if self.stage is VoteStage.NONE:
            self.stage, self._deadline = VoteStage.ASKED, now + HOLD_SECONDS
        return [Message(MessageKind.ASK, tier=tier)]

    def receive(self, message: Message, now: float, local: LocalProcesses) -> list[Message]:
        """Process a message of the chair."""
        if self.stage is VoteStage.AGREED:
            if message.kind is MessageKind.LEFT:
                self._chair_is_to_leave = False
            elif message.kind is MessageKind.LOST and self.lost_at is None:
                self.lost_at = now
            return []
        if message.kind is MessageKind.HOLD:
            self._chair_is_to_leave = True
            if not (local.all_live and local.take_part) or self.stage is VoteStage.CLOSED:
                return [Message(MessageKind.CANNOT, message.number)]
            self.stage, self._number, self._deadline = VoteStage.HELD, message.number, now + HOLD_SECONDS
            self._read_at, self._has_refused = None, False
        elif message.kind is MessageKind.LEAVE:
            if self.stage is VoteStage.ANSWERED and message.number == self._number:
                self.stage, self.agreed = VoteStage.AGREED, VoteResult(message.step, KeptIn(message.tier))
                self._stay = local.stay and message.step > 0
        elif message.kind is MessageKind.OFF and self.stage is not VoteStage.CLOSED:
            self.stage = VoteStage.NONE
        return []

    def note_order(self, now: float) -> None:
        """Note that `order` is visible to the processes."""
        if self.stage is VoteStage.HELD and self._read_at is None:
            self._read_at = now + SETTLE_SECONDS

    def look(self, now: float, local: LocalProcesses) -> list[Message]:
        """Answer once the order to hold has taken effect.

        Args:
            local: read no earlier than `now`.
        """
        if self.stage not in (VoteStage.HELD, VoteStage.ANSWERED) or self._has_refused:
            return []
        if not local.all_live:
            self._has_refused = True
            return [Message(MessageKind.CANNOT, self._number)]
        if self.stage is VoteStage.HELD and self._read_at is not None and now >= self._read_at:
            self.stage = VoteStage.ANSWERED
            return [
                Message(MessageKind.ENDED, self._number, max(local.ended), max(local.keep_in, self._wish))
            ]
        return []

    def leave(self) -> list[Message]:
        """Inform the chair that the processes here have left as agreed."""
        return [Message(MessageKind.LEFT)]

    def lose_chair(self, now: float) -> None:
        """Note that the chair's agent has left, or that the connection broke."""
        if self.stage is VoteStage.AGREED and self._chair_is_to_leave and self.lost_at is None:
            self.lost_at = now
        self.close()

    def expire(self, now: float) -> None:
        """Release the processes if the chair has been silent for too long."""
        silent = self.stage in (VoteStage.ASKED, VoteStage.HELD, VoteStage.ANSWERED)
        if silent and now >= self._deadline:
            self.close()

    def close(self) -> None:
        """Take part in no further vote. An agreed step stays in force."""
        if self.stage is not VoteStage.AGREED:
            self.stage = VoteStage.CLOSED
