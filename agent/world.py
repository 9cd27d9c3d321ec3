"""What the ElasticJob says, and what an agent does about it: plain data and one decision.

The agent is level-triggered. It never remembers events: it looks at the newest world, at who it is, at the
highest round it has acted upon and at what it last reported, and `next_action` says what to do now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

HANG_TIMEOUT_SECONDS = 1_800.0
"""Where the job does not say: the CRD's default."""


class WorldPhase(Enum):
    FORMING = "Forming"
    FORMED = "Formed"
    REFORMING = "Reforming"


class AgentState(Enum):
    """What the agent reports of itself; the same words as `status.agent.state`."""

    READY = "Ready"
    RUNNING = "Running"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Member:
    """One worker slot in one of its lives."""

    index: int
    incarnation: int


@dataclass(frozen=True)
class World:
    """`ElasticJob.status.rendezvous`: who trains with whom in a round."""

    round: int
    phase: WorldPhase
    members: tuple[Member, ...] = ()
    """In rank order."""
    world_size: int = 0
    master_address: str = ""
    master_port: int = 0
    reason: str = ""

    @classmethod
    def parse(cls, rendezvous: Mapping[str, Any]) -> World | None:
        """None where nothing usable is published (yet)."""
        try:
            return cls(
                round=int(rendezvous["round"]),
                phase=WorldPhase(rendezvous["phase"]),
                members=tuple(
                    Member(int(index), int(incarnation))
                    for index, incarnation in zip(
                        rendezvous.get("members") or (), rendezvous.get("incarnations") or (), strict=True
                    )
                ),
                world_size=int(rendezvous.get("worldSize") or 0),
                master_address=str(rendezvous.get("masterAddress") or ""),
                master_port=int(rendezvous.get("masterPort") or 0),
                reason=str(rendezvous.get("reason") or ""),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def rank_of(self, me: Member) -> int | None:
        return self.members.index(me) if me in self.members else None

    def has_replaced(self, me: Member) -> bool:
        return any(m.index == me.index and m.incarnation > me.incarnation for m in self.members)


@dataclass(frozen=True)
class JobView:
    """What the agent needs to know of its ElasticJob."""

    phase: str = ""
    world: World | None = None
    active_check: str = ""
    """The NodeCheck that the job's idle workers are in."""
    hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS

    @classmethod
    def parse(cls, job: Mapping[str, Any]) -> JobView:
        status = job.get("status") or {}
        policy = (job.get("spec") or {}).get("elasticPolicy") or {}
        return cls(
            str(status.get("phase") or ""),
            World.parse(status.get("rendezvous") or {}),
            str(status.get("activeCheck") or ""),
            float(policy.get("hangTimeoutSeconds") or HANG_TIMEOUT_SECONDS),
        )


class Verb(Enum):
    WAIT = "wait"
    """All is as it should be."""
    START = "start"
    """Stop what runs, then start processes for `round`."""
    STAND_BY = "stand by"
    """Stop what runs, report Ready for `round`, and wait for the next."""
    EXIT = "exit"
    """Stop what runs, and leave, for `reason`."""


class ExitReason(Enum):
    JOB_SUCCEEDED = "the job succeeded"
    JOB_FAILED = "the job failed"
    JOB_SUSPENDED = "the job is suspended"
    REPLACED = "a newer incarnation has taken this worker's place"


@dataclass(frozen=True)
class Action:
    verb: Verb
    round: int | None = None
    reason: ExitReason | None = None


WAIT = Action(Verb.WAIT)

_ENDED = {
    "Succeeded": ExitReason.JOB_SUCCEEDED,
    "Failed": ExitReason.JOB_FAILED,
    "Suspended": ExitReason.JOB_SUSPENDED,
}


def next_action(
    world: World | None, me: Member, observed_round: int, state: AgentState, job_phase: str
) -> Action:
    """What the agent `me` does now.

    Args:
        world: the newest world seen, if any.
        observed_round: the highest round acted upon; 0 before the first.
        state: what the agent last reported.
        job_phase: the ElasticJob's `status.phase`.
    """
    if state is AgentState.STOPPED:
        return WAIT
    if job_phase in _ENDED:
        return Action(Verb.EXIT, reason=_ENDED[job_phase])
    if world is None or world.round < observed_round:
        return WAIT
    if world.has_replaced(me):
        return Action(Verb.EXIT, reason=ExitReason.REPLACED)
    news = world.round > observed_round
    if world.phase is WorldPhase.FORMED and me in world.members:
        # At the observed round, a state other than Running says that this agent left it: the next will come.
        return Action(Verb.START, world.round) if news else WAIT
    if state is AgentState.SUCCEEDED:
        return WAIT  # done, unless a newer round wants this agent again
    if news or (state is AgentState.RUNNING and world.phase is not WorldPhase.FORMED):
        return Action(Verb.STAND_BY, world.round)
    return WAIT
