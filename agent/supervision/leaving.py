"""An agent's decisions in a vote: whether to wait, the outcome, and when the processes are late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from agent.facts.world import AgentVerb, NextAction
from agent.supervision.vote import VoteResult
from crds.progress_record import EXIT_LEFT

HURRY_GRACE_SECONDS = 5.0
"""Total time for processes to stop once the next world is formed and its other members wait for this one; in
a vote, once a peer was killed before it had left."""


class VoteOutcome(Enum):
    """Outcome of a vote."""

    OFF = "nobody leaves by it"
    FAILED = "a process here failed before it left"
    LEFT = "the processes here have left"
    STAYED = "they have left, and live on"
    ENDED = "training ended instead"
    STOPPED = "the processes here were late, and were stopped by signal"


@dataclass(frozen=True)
class WaitForVote:
    """Nothing has to be done yet."""

    seconds: float
    """Longest time until the next look."""


@dataclass(frozen=True)
class StopLate:
    """The processes are late, and have to be stopped by signal."""

    grace_seconds: float


@dataclass(frozen=True)
class Graces:
    """Time that processes get to stop."""

    stop_seconds: float
    """Time from the decision to stop the processes to SIGKILL."""
    failure_seconds: float
    """The same, if the processes of other agents are dead."""


@dataclass(frozen=True)
class LeaveVote:
    """A vote and the processes here, at one moment."""

    is_open: bool
    """A vote is open, or was decided."""
    wish: bool
    """This agent has asked for the vote."""
    agreed: VoteResult | None
    lost_seconds: float | None
    """Time since the loss of an agent whose processes had not left."""
    peers_are_dead: bool
    """A failure has ended the round."""
    exit_codes: Mapping[int, int]
    """Exit codes of the processes that have ended, by local rank."""
    ended: tuple[int, ...]
    """Last step that each process here has ended, by local rank."""
    seconds: float
    """Time since the grace began."""
    wake_seconds: float | None
    """Time until the ballot has to be looked at again."""
    living: frozenset[int] = frozenset()
    """Local ranks of the processes that have left the round and live on."""
    lost: bool = False
    """A process here has left the round by itself, since a collective has failed."""

    def has_arrived(self, local_rank: int) -> bool:
        """Whether that process has ended the agreed step, so that only the save remains."""
        return self.agreed is not None and self.ended[local_rank] >= self.agreed.step

    @property
    def alive(self) -> list[int]:
        """Local ranks of the processes that run and have not left."""
        gone = self.exit_codes.keys() | self.living
        return [rank for rank in range(len(self.ended)) if rank not in gone]

    @property
    def have_left(self) -> list[int]:
        """Local ranks of the processes that have left as agreed."""
        if self.agreed is None:
            return []
        codes = self.exit_codes.items()
        left = {rank for rank, code in codes if code == EXIT_LEFT or (code == 0 and self.has_arrived(rank))}
        return sorted(left | self.living)


def may_stay(action: NextAction, size: int, next_size: int | None) -> bool:
    """Whether processes that leave by vote may live on.

    A world of unknown size is assumed to have the size of the present one. If that proves wrong, the
    processes are ended before it begins.

    Args:
        action: the job's order to their agent.
        size: number of members of the world that they leave.
        next_size: number of members of the next world; None if it is unknown or does not matter.
    """
    return action.verb is not AgentVerb.EXIT and next_size in (None, size)


def decide(vote: LeaveVote, graces: Graces) -> WaitForVote | StopLate | VoteOutcome:
    """Return what an agent that takes part in a vote has to do."""
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
    """Return the time that late processes still have after SIGTERM; None if they are not late.

    They have half of the grace to reach the agreed step, and all of it to save that. If an agent was lost
    before its processes had left, the others might wait for their part of the checkpoint for ever.
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
