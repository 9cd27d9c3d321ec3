"""Leaving by vote, as an agent decides it: whether to wait, what the vote came to, and when it is late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from agent.facts.world import AgentVerb, NextAction
from agent.supervision.vote import VoteResult
from crds.progress_record import EXIT_LEFT

HURRY_GRACE_SECONDS = 5.0
"""What processes get in all, once the next world is formed and its other members wait for this one; and while
they leave by vote, once a peer has been killed that had not left."""


class VoteOutcome(Enum):
    """What a vote came to."""

    OFF = "nobody leaves by it"
    FAILED = "a process here failed on its way"
    LEFT = "the processes here have left"
    STAYED = "they have left, and live on"
    ENDED = "training came to its end instead"
    STOPPED = "the processes here were late, and have been stopped in the old way"


@dataclass(frozen=True)
class WaitForVote:
    """There is nothing to do yet."""

    seconds: float
    """Longest time until the next look."""


@dataclass(frozen=True)
class StopLate:
    """The processes are late. They are stopped in the old way."""

    grace_seconds: float


@dataclass(frozen=True)
class Graces:
    """Time that processes get to stop."""

    stop_seconds: float
    """Time from the wish to stop the processes to SIGKILL."""
    failure_seconds: float
    """The same, if the processes of others are dead."""


@dataclass(frozen=True)
class LeaveVote:
    """A vote and the processes here, at one moment."""

    is_open: bool
    """There is a vote that is not over, or one that was decided."""
    wish: bool
    """This agent has asked for it."""
    agreed: VoteResult | None
    lost_seconds: float | None
    """Time since an agent was lost whose processes had not left."""
    peers_are_dead: bool
    """A failure has ended the round."""
    exit_codes: Mapping[int, int]
    """Exit codes of the processes that have ended, by local rank."""
    ended: tuple[int, ...]
    """The step that each process here has ended last, by local rank."""
    seconds: float
    """Time since the grace began."""
    wake_seconds: float | None
    """Time until the ballot has to look again."""
    living: frozenset[int] = frozenset()
    """Local ranks of the processes that have left the round and live on."""
    lost: bool = False
    """A process here has left the round by itself, since a collective has failed."""

    def has_arrived(self, local_rank: int) -> bool:
        """Whether that process has ended the step after which it is to leave, and only saves it now."""
        return self.agreed is not None and self.ended[local_rank] >= self.agreed.step

    @property
    def alive(self) -> list[int]:
        """The local ranks of the processes that run, and have not left."""
        gone = self.exit_codes.keys() | self.living
        return [rank for rank in range(len(self.ended)) if rank not in gone]

    @property
    def have_left(self) -> list[int]:
        """The local ranks of the processes that have left as it was agreed."""
        if self.agreed is None:
            return []
        codes = self.exit_codes.items()
        left = {rank for rank, code in codes if code == EXIT_LEFT or (code == 0 and self.has_arrived(rank))}
        return sorted(left | self.living)


def may_stay(action: NextAction, size: int, next_size: int | None) -> bool:
    """Tell whether processes may live on that leave by vote.

    A world whose size nobody knows yet is taken to have that of this one. Where it has not, they are ended
    before it begins, as those that leave are now.

    Args:
        action: what the job asks of their agent.
        size: number of members of the world that they leave.
        next_size: that of the next world; None if it is not known, or does not count.
    """
    return action.verb is not AgentVerb.EXIT and next_size in (None, size)


def decide(vote: LeaveVote, graces: Graces) -> WaitForVote | StopLate | VoteOutcome:
    """Return what an agent does about a vote that it takes part in."""
    if not vote.is_open:
        return VoteOutcome.OFF
    if vote.agreed is None:
        is_late = vote.wish and vote.seconds >= graces.stop_seconds / 2
        return VoteOutcome.OFF if is_late or vote.peers_are_dead else _wait(vote, graces)
    if vote.lost or not set(vote.exit_codes.values()) <= {0, EXIT_LEFT}:
        return VoteOutcome.FAILED
    if not vote.alive:
        return VoteOutcome.STAYED if vote.living else VoteOutcome.LEFT
    grace_seconds = _last_grace(vote, graces)
    return _wait(vote, graces) if grace_seconds is None else StopLate(grace_seconds)


def _last_grace(vote: LeaveVote, graces: Graces) -> float | None:
    """Return what the processes still get, in the old way, once they are late; None if they are not.

    Half of the grace is for the way to the agreed step, and all of it for saving that. Where an agent is
    lost whose processes had not left, the others may wait for their part of the checkpoint for ever.
    """
    left_seconds = max(graces.stop_seconds - vote.seconds, 0.0)
    arrived = all(vote.has_arrived(rank) for rank in vote.alive)
    lost = vote.lost_seconds is not None and vote.lost_seconds >= HURRY_GRACE_SECONDS
    dead = vote.peers_are_dead or vote.lost_seconds is not None
    if lost or (dead and not arrived):
        return min(graces.failure_seconds, left_seconds)
    if left_seconds <= 0 or (not arrived and vote.seconds >= graces.stop_seconds / 2):
        return left_seconds
    return None


def _wait(vote: LeaveVote, graces: Graces) -> WaitForVote:
    ends = [graces.stop_seconds / 2 - vote.seconds, graces.stop_seconds - vote.seconds]
    if vote.lost_seconds is not None:
        ends.append(HURRY_GRACE_SECONDS - vote.lost_seconds)
    waits = [end for end in ends if end > 0]
    if vote.wake_seconds is not None:
        waits.append(max(vote.wake_seconds, 0.0))
    return WaitForVote(min(waits, default=0.0))
