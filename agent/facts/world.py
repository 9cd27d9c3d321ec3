"""The ElasticWorld as plain data, and an agent's decision about it.

The agent is level-triggered and remembers no events. `next_action` decides from the newest world, the agent's
identity, the highest round it has acted on, and its last report.
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

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    incarnation: int


@dataclass(frozen=True)
class AgentWorld:
    """Members of one round, and the job's requests to them."""

    round: int
    phase: RendezvousPhase
    members: tuple[Member, ...] = ()
    """Members in rank order."""
    world_size: int = 0
    master_address: str = ""
    master_port: int = 0
    broken_round: int = 0
    """Newest round in which training processes died."""
    hangs: bool = False
    """The round ends since it hangs, and its members have to report where their processes are."""
    awaits_checkpoint: bool = False
    """Ready workers wait for one of its checkpoints in order to join."""

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> AgentWorld | None:
        """Return the world of an ElasticWorld's spec; None if it has no usable one (yet)."""
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
    """An agent's view of the ElasticWorld. The default stands for a missing object."""

    phase: str = ""
    """Phase of the ElasticJob."""
    world: AgentWorld | None = None
    active_check: str = ""
    """NodeCheck of the job's idle workers."""
    hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS
    failures: int = 0
    """Number of worlds that broke because training processes failed."""
    started_at: datetime | None = None
    topology_levels: int = 0
    """Number of the job's `nodeCheck.topologyKeys`."""
    asks_for_stacks: str = ""
    """Request for the stacks of the training processes, new with each new text; "" for none."""
    has_trained: bool = False
    """The job has made a step."""
    cluster: Cluster | None = None
    """Cluster of a job with parameter servers, in place of a world."""
    job_uid: str = ""

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether ready workers wait for a checkpoint of the world in order to join."""
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
    """Action of an agent on its view of the world."""

    WAIT = "wait"
    """Nothing has to change."""
    START = "start"
    """Stop the running processes, then start those of `round`."""
    STAND_BY = "stand by"
    """Stop the running processes, report Ready for `round`, and wait for the next."""
    EXIT = "exit"
    """Stop the running processes, and leave, for `reason`."""


class ExitReason(Enum):
    """Reason for an agent to leave."""

    JOB_SUCCEEDED = "the job succeeded"
    JOB_FAILED = "the job failed"
    JOB_SUSPENDED = "the job is suspended"
    REPLACED = "a newer incarnation has taken this worker's place"


@dataclass(frozen=True)
class NextAction:
    """The next action of an agent, with its details."""

    verb: AgentVerb
    round: int | None = None
    """Round to START or STAND_BY for."""
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
    """Return the next action of an agent.

    Args:
        world: the newest world; None before the first.
        me: the agent's own slot and incarnation.
        observed_round: the highest round it has acted on; 0 before the first.
    """
    if state is AgentState.STOPPED:
        return WAIT
    if job_phase == JobPhase.SUSPENDED and state is AgentState.READY:
        return WAIT  # its Pod will be deleted, or the job has been resumed, and the phase is outdated
    if job_phase in _ENDED:
        return NextAction(AgentVerb.EXIT, reason=_ENDED[job_phase])
    if world is None or world.round < observed_round:
        return WAIT
    if world.has_replaced(me):
        return NextAction(AgentVerb.EXIT, reason=ExitReason.REPLACED)
    news = world.round > observed_round
    if world.phase is RendezvousPhase.FORMED and me in world.members:
        # At the observed round, an agent that is not Running has left it, and waits for the next.
        return NextAction(AgentVerb.START, world.round) if news else WAIT
    if state is AgentState.SUCCEEDED:
        return WAIT  # done, unless a newer round wants this agent again
    if news or (state is AgentState.RUNNING and world.phase is not RendezvousPhase.FORMED):
        return NextAction(AgentVerb.STAND_BY, world.round)
    return WAIT


def planned_tier(
    action: NextAction, joined: AgentWorld, newest: AgentWorld | None, peers: Sequence[int] | None = None
) -> KeptIn | None:
    """Return the tier for the last step of a round that stops by plan; None if it is not kept.

    Memory suffices only if the next world is formed, and each member that is not in it has a peer there,
    which first takes a copy.

    Args:
        joined: the world of the running processes.
        peers: for each member of `joined`, the rank of the peer with its replicas; None without replicas.
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

    If a published world excludes the Pod, it stops alone. In any other case all Pods may be about to stop.
    """
    if newest is None or newest.phase is not RendezvousPhase.FORMED or me in newest.members:
        return KeptIn.STORAGE
    return planned_tier(NextAction(AgentVerb.STAND_BY, newest.round), joined, newest, peers) or KeptIn.STORAGE
