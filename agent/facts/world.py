"""What the ElasticWorld says, and what an agent does about it: plain data and one decision.

The agent is level-triggered and remembers no events. It looks at the newest world, at who it is, at the
highest round it has acted on and at what it last reported, and `next_action` says what to do now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from crds.agent_report import AgentState
from crds.checkpoint_files import KeptIn
from crds.cluster import Cluster
from crds.names import LABEL_JOB_UID
from crds.phases import HANG_TIMEOUT_SECONDS, JobPhase, RendezvousPhase
from crds.ranges import incarnations_of, ranked_from_text


class Member(NamedTuple):
    """One incarnation of a worker slot."""

    index: int  # type: ignore[assignment]  # nobody looks for something in a member
    incarnation: int


@dataclass(frozen=True)
class AgentWorld:
    """The members of one round, and what is asked of them."""

    round: int
    phase: RendezvousPhase
    members: tuple[Member, ...] = ()
    """The members in rank order."""
    world_size: int = 0
    master_address: str = ""
    master_port: int = 0
    broken_round: int = 0
    """The newest round of which training processes died."""
    hangs: bool = False
    """It is given up since it hangs, and its members are asked where their processes are."""
    awaits_checkpoint: bool = False
    """Workers that are ready wait for one of its checkpoints to join."""

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> AgentWorld | None:
        """Return the world of an ElasticWorld's spec; None where nothing usable is published (yet)."""
        try:
            indices = ranked_from_text(str(spec.get("members") or ""))
            incarnations = incarnations_of(indices, spec.get("incarnations") or {})
            asked = spec.get("asked") or {}
            return cls(
                round=int(spec["round"]),
                phase=RendezvousPhase(spec["phase"]),
                members=tuple(map(Member, indices, incarnations)),
                world_size=int(spec.get("worldSize") or 0),
                master_address=str(spec.get("masterAddress") or ""),
                master_port=int(spec.get("masterPort") or 0),
                broken_round=int(spec.get("brokenRound") or 0),
                hangs=bool(asked.get("hang")),
                awaits_checkpoint=bool(asked.get("checkpoint")),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def has_replaced(self, me: Member) -> bool:
        """Whether a later incarnation of `me` is a member."""
        return any(m.index == me.index and m.incarnation > me.incarnation for m in self.members)


@dataclass(frozen=True)
class WorldView:
    """What the agent acts on. The default is an ElasticWorld that is not there (any more)."""

    phase: str = ""
    """The ElasticJob's."""
    world: AgentWorld | None = None
    active_check: str = ""
    """The NodeCheck that the job's idle workers are in."""
    hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS
    failures: int = 0
    """Worlds that broke because training processes failed."""
    started_at: datetime | None = None
    topology_levels: int = 0
    """How many of the job's `nodeCheck.topologyKeys` there are."""
    asks_for_stacks: str = ""
    """Each new text asks where the training processes are; "" asks for nothing."""
    has_trained: bool = False
    """The job's account knows a step."""
    cluster: Cluster | None = None
    """The cluster of a job with parameter servers, in place of a world."""
    job_uid: str = ""

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether workers that are ready wait for a checkpoint of the world to join."""
        return self.world is not None and self.world.awaits_checkpoint

    def failures_per_hour(self, now: datetime) -> float | None:
        """Return the job's failures per hour, over its first hour at least; None without its start time."""
        if self.started_at is None:
            return None
        return self.failures / max((now - self.started_at).total_seconds() / 3600, 1.0)

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> WorldView:
        spec = world.get("spec") or {}
        asked = spec.get("asked") or {}
        return cls(
            str(spec.get("jobPhase") or ""),
            AgentWorld.parse(spec),
            str(spec.get("activeCheck") or ""),
            float(spec.get("hangTimeoutSeconds") or HANG_TIMEOUT_SECONDS),
            int(spec.get("failures") or 0),
            _time(spec.get("startedAt")),
            int(spec.get("topologyLevels") or 0),
            str(asked.get("stacks") or ""),
            bool(spec.get("hasTrained")),
            Cluster.parse(world),
            str(((world.get("metadata") or {}).get("labels") or {}).get(LABEL_JOB_UID) or ""),
        )


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None


class AgentVerb(Enum):
    """What an agent can do about the world."""

    WAIT = "wait"
    """All is as it should be."""
    START = "start"
    """Stop what runs, then start processes for `round`."""
    STAND_BY = "stand by"
    """Stop what runs, report Ready for `round`, and wait for the next."""
    EXIT = "exit"
    """Stop what runs, and leave, for `reason`."""


class ExitReason(Enum):
    """Why an agent leaves."""

    JOB_SUCCEEDED = "the job succeeded"
    JOB_FAILED = "the job failed"
    JOB_SUSPENDED = "the job is suspended"
    REPLACED = "a newer incarnation has taken this worker's place"


@dataclass(frozen=True)
class NextAction:
    """What an agent does now."""

    verb: AgentVerb
    round: int | None = None
    """The round to START or STAND_BY for."""
    reason: ExitReason | None = None


WAIT = NextAction(AgentVerb.WAIT)

_ENDED: dict[str, ExitReason] = {
    JobPhase.SUCCEEDED: ExitReason.JOB_SUCCEEDED,
    JobPhase.FAILED: ExitReason.JOB_FAILED,
    JobPhase.SUSPENDED: ExitReason.JOB_SUSPENDED,
}


def next_action(
    world: AgentWorld | None, me: Member, observed_round: int, state: AgentState, job_phase: str
) -> NextAction:
    """Return what an agent does now.

    Args:
        world: the newest world seen, if any.
        me: the agent's own slot and incarnation.
        observed_round: the highest round it has acted on; 0 before the first.
    """
    if state is AgentState.STOPPED:
        return WAIT
    if job_phase == JobPhase.SUSPENDED and state is AgentState.READY:
        return WAIT  # its Pod is deleted, or it is the one of a job that is resumed, and the news are old
    if job_phase in _ENDED:
        return NextAction(AgentVerb.EXIT, reason=_ENDED[job_phase])
    if world is None or world.round < observed_round:
        return WAIT
    if world.has_replaced(me):
        return NextAction(AgentVerb.EXIT, reason=ExitReason.REPLACED)
    news = world.round > observed_round
    if world.phase is RendezvousPhase.FORMED and me in world.members:
        # At the observed round, a state other than Running says that this agent left it: the next will come.
        return NextAction(AgentVerb.START, world.round) if news else WAIT
    if state is AgentState.SUCCEEDED:
        return WAIT  # done, unless a newer round wants this agent again
    if news or (state is AgentState.RUNNING and world.phase is not RendezvousPhase.FORMED):
        return NextAction(AgentVerb.STAND_BY, world.round)
    return WAIT


def planned_tier(
    action: NextAction, joined: AgentWorld, newest: AgentWorld | None, peers: Sequence[int] | None = None
) -> KeptIn | None:
    """Return the tier for the last step of a round that is to stop by plan; None if it is not kept.

    Memory serves only if the next world is known, and everybody who is not in it has a peer there, who takes
    a copy first.

    Args:
        joined: the world that they run in.
        peers: of each member of `joined`, the rank of the one that holds its replicas; None if nobody does.
    """
    if action.verb is AgentVerb.EXIT:
        return KeptIn.STORAGE if action.reason is ExitReason.JOB_SUSPENDED else None
    if action.verb is AgentVerb.WAIT:
        return None
    if newest is None or newest.phase is not RendezvousPhase.FORMED:
        return KeptIn.STORAGE
    stay = set(newest.members)
    leavers = [rank for rank, member in enumerate(joined.members) if member not in stay]
    if not leavers:
        return KeptIn.MEMORY
    copied = peers is not None and all(joined.members[peers[rank]] in stay for rank in leavers)
    return KeptIn.MEMORY if copied else KeptIn.STORAGE


def tier_of_a_stop(
    me: Member, joined: AgentWorld, newest: AgentWorld | None, peers: Sequence[int] | None = None
) -> KeptIn:
    """Return the tier for the last step when this agent's Pod stops; the arguments are `planned_tier`'s.

    A Pod that a published world does without goes alone. What else goes with any other, nobody knows: all
    Pods may be about to be deleted.
    """
    if newest is None or newest.phase is not RendezvousPhase.FORMED or me in newest.members:
        return KeptIn.STORAGE
    return planned_tier(NextAction(AgentVerb.STAND_BY, newest.round), joined, newest, peers) or KeptIn.STORAGE
