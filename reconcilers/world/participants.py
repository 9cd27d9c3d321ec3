"""Participants and bounds of a world, from ElasticWorkers. Pure.

Extra workers are those beyond how many a job needs (`status.scaling.base`). The world does not wait for one
that finds no node, or whose Pod was taken. Who asked for them, and gives them back, is not decided here.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from crds import names
from crds.agent_report import CHECKPOINT_SECONDS, PROTOCOL, AgentReport, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase
from crds.phases import RendezvousPhase as Phase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.policy import exhausted_workers, spare_workers
from reconcilers.observed.builder import DEFAULT_GRACE_SECONDS, grace_seconds
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.slots import base_of, extra_slots, present_slots, slots_of
from reconcilers.observed.worker_state import current_report, hindered_by, leaving_pod, stuck_by
from reconcilers.observed.workers import Workers

MAX_REASON = 96
"""Characters of a worker's message that the world's reason quotes."""


@dataclass(slots=True)
class Participant:
    """One worker slot that is wanted, or is to take the place of one, as the last reads show it.

    Never changed; not frozen, since a look makes one a worker, which would take three times as long.
    """

    index: int
    incarnation: int
    alive: bool
    """Its Pod has neither ended nor been lost, is not being deleted, nor waits to be started again."""
    succeeded: bool = False
    """Its Pod ended well."""
    gone_because: str = ""
    """Why it is not alive."""
    stops_in_good_order: bool = False
    """It is not counted as alive because its Pod is being deleted; it has the time to save."""
    report: AgentReport | None = None
    """The agent's report, if it is of this incarnation and Pod."""
    seconds_since_joined: float = 0.0
    """How long we have seen this agent wait for a world."""
    seconds_since_checkpoint: float | None = None
    """How long ago we saw it save one."""
    replaces: int | None = None
    """The slot whose place it is to take."""
    leaving: str = ""
    """Why it is to be in no world, although it could be."""
    domain: str = ""
    """Domain of the node of its last Pod; empty without one, and in a job without domains."""
    leaving_pod: str = ""
    """A Pod of the slot, this one or an earlier one, that leaves and may still train."""

    @property
    def joinable(self) -> bool:
        if not self.alive or self.leaving or self.leaving_pod or self.report is None:
            return False
        return self.report.protocol >= PROTOCOL and self.report.state is not AgentState.STOPPED


@dataclass(frozen=True)
class Bounds:
    """How large the world may be, and how long to wait for more of it."""

    desired: int
    minimum: int
    node_unit: int
    last_call_seconds: float
    shrink_after_seconds: float
    grow_at_checkpoint_seconds: float = 0.0
    grace_seconds: float = 30.0
    """What a worker's Pod has to stop."""
    standby: int = 0
    """How many there are to be besides, ready to step in."""

    def without(self, left_out: int) -> Bounds:
        """Return the bounds without so many workers, for which standby workers make up."""
        return replace(self, desired=min(self.desired, self.desired + self.standby - left_out))

    def floor(self, count: int) -> int:
        """The largest allowed world size of at most `count` workers; 0 if that is below the minimum."""
        units = min(count, self.desired) // self.node_unit * self.node_unit
        return units if units >= self.least else 0

    @property
    def least(self) -> int:
        """The smallest allowed world size."""
        return -(-max(self.minimum, 1) // self.node_unit) * self.node_unit


def bounds_of(job: ElasticJob) -> Bounds:
    worker, policy = job.spec.replica_specs.get(names.WORKER), job.spec.elastic_policy
    return Bounds(
        desired=worker.replicas if worker else 0,
        standby=worker.standby if worker else 0,
        minimum=minimum_workers(job),
        node_unit=policy.node_unit,
        last_call_seconds=float(policy.last_call_seconds),
        shrink_after_seconds=float(policy.shrink_after_seconds),
        grow_at_checkpoint_seconds=float(policy.grow_at_checkpoint_seconds),
        grace_seconds=float(grace_seconds(worker.template["spec"]) if worker else DEFAULT_GRACE_SECONDS),
    )


@dataclass(frozen=True)
class Ages:
    """How long ago we saw something of each worker, by uid."""

    joined: Mapping[str, float] = field(default_factory=dict)
    """When it began to wait for a world."""
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    """When it made the step of its last checkpoint, as far as is known."""
    unheard: Mapping[str, float] = field(default_factory=dict)
    """When its Pod ran, without a report of its agent to this day."""


def participants_of(job: ElasticJob, workers: Sequence[ElasticWorker], ages: Ages) -> list[Participant]:
    """The training workers that are wanted, or are to take the place of one, or are to leave the world."""
    present = set(present_slots(job, names.WORKER))
    sources = {target: source for source, target in slots_of(job, names.WORKER).moves.items()}
    world = job.status.rendezvous
    members = set(world.members) if world and world.phase is RendezvousPhase.FORMED else set()
    counted = present | members
    has_domains = job.spec.elastic_policy.domain is not None
    return [
        _participant(
            worker,
            ages,
            replaces=sources.get(worker.spec.index),
            leaving="" if worker.spec.index in present else f"worker {worker.spec.index} is no longer wanted",
            domain=(worker.status.domain or "") if has_domains else "",
        )
        for worker in workers
        if worker.spec.type == names.WORKER and worker.spec.index in counted
    ]


def on_faulty_nodes(people: Sequence[Participant], faulty: Mapping[int, str]) -> Sequence[Participant]:
    """Return the participants, with those on faulty nodes marked as lost.

    Args:
        faulty: the finding, by index.
    """
    if not faulty:
        return people
    return [replace(p, alive=False, gone_because=faulty[p.index]) if p.index in faulty else p for p in people]


def is_waiting(report: AgentReport | None) -> Hashable:
    """A value that changes whenever an agent begins, or ceases, to wait for a world."""
    if report is None:
        return None
    return (report.pod_uid, report.state in (AgentState.READY, AgentState.FAILED))


def checkpoint_of(report: AgentReport | None) -> int | None:
    """The step of the last checkpoint that an agent has reported."""
    return None if report is None or report.progress is None else report.progress.checkpoint_step


def seconds_behind_checkpoint(report: AgentReport | None) -> float:
    """How long ago that step was made, at least, when the agent reported last; it may report late.

    Not more than it can be late: a script may number its checkpoints otherwise than its steps.
    """
    progress = None if report is None else report.progress
    if progress is None or progress.checkpoint_step is None:
        return 0.0
    steps = max(progress.step - progress.checkpoint_step, 0)
    return min(steps * (progress.seconds_per_step or 0.0), CHECKPOINT_SECONDS)


def _participant(
    worker: ElasticWorker, ages: Ages, *, replaces: int | None, leaving: str, domain: str
) -> Participant:
    status, report = worker.status, current_report(worker)
    phase = status.phase if status.observed_incarnation == worker.spec.incarnation else None
    succeeded, failed = phase is WorkerPhase.SUCCEEDED, phase is WorkerPhase.FAILED
    was_there = phase is WorkerPhase.PENDING and report is not None
    hindered = hindered_by(worker) if was_there else None
    gone_because = status.message if failed else hindered.message if hindered is not None else ""
    return Participant(
        index=worker.spec.index,
        incarnation=worker.spec.incarnation,
        alive=not succeeded and not failed and hindered is None,
        succeeded=succeeded,
        gone_because=shortened(gone_because.partition("\n")[0], MAX_REASON),
        stops_in_good_order=failed and bool(status.last_exit and status.last_exit.in_good_order),
        report=report,
        seconds_since_joined=ages.joined.get(worker.metadata.uid, 0.0),
        seconds_since_checkpoint=ages.checkpoint.get(worker.metadata.uid),
        replaces=replaces,
        leaving=leaving,
        domain=domain,
        leaving_pod=leaving_pod(worker),
    )


EXTRA_CHECKPOINT_SECONDS = 900.0
"""Longest wait of extra workers for a checkpoint of a job that tells of them, where it names no other."""


@dataclass(frozen=True)
class Extra:
    """The extra workers, by how they are; those first of whom the job has least."""

    lost: frozenset[int] = frozenset()
    """Workers whose room somebody else has: they get no other Pod."""
    exhausted: frozenset[int] = frozenset()
    """Workers whose Pods have failed too often to get another."""
    stuck: frozenset[int] = frozenset()
    on_their_way: frozenset[int] = frozenset()
    starting: frozenset[int] = frozenset()
    training: frozenset[int] = frozenset()
    """Members of the world, or of the last one while it is broken."""


def extra_of(job: ElasticJob, workers: Workers, published: Rendezvous) -> Extra:
    """Sort the extra workers by how they are."""
    if not (slots := extra_slots(job)):
        return Extra()
    members = set(published.members) if published.phase is not Phase.FORMING else set()
    exhausted = exhausted_workers(workers, spare_workers(job, workers))
    found: dict[str, set[int]] = {}
    for index in slots:
        kind = _kind(workers.by_slot.get((names.WORKER, index)), members, exhausted)
        found.setdefault(kind, set()).add(index)
    return Extra(**{kind: frozenset(indices) for kind, indices in found.items()})


def _kind(worker: ElasticWorker | None, members: Container[int], exhausted: Container[str]) -> str:
    if worker is None or worker.status.observed_incarnation != worker.spec.incarnation:
        return "on_their_way"
    if worker.metadata.uid in exhausted:
        return "exhausted"
    end = worker.status.last_exit if worker.status.phase is WorkerPhase.FAILED else None
    if end is not None and end.incarnation == worker.spec.incarnation and meaning_of(end.exit_class).taken:
        return "lost"
    if stuck_by(worker) is not None:
        return "stuck"
    if worker.spec.index in members:
        return "training"
    has_node = worker.status.node_name or worker.status.phase is WorkerPhase.RUNNING
    return "starting" if has_node else "on_their_way"


def with_extra(
    bounds: Bounds, job: ElasticJob, workers: Workers, published: Rendezvous, people: Iterable[Participant]
) -> Bounds:
    """The bounds of a world that does not wait for extra workers that find no node, are taken, or exhausted.

    Where checkpoints are told, and are not in memory, the others wait for the next.
    """
    if base_of(job) is None:
        return bounds
    extra, world = extra_of(job, workers, published), set(published.members)
    bounds = replace(
        bounds, desired=bounds.desired - len(extra.stuck) - len(extra.lost) - len(extra.exhausted)
    )
    tells = any(p.seconds_since_checkpoint is not None for p in people if p.index in world)
    return replace(bounds, grow_at_checkpoint_seconds=checkpoint_seconds(job)) if tells else bounds


def checkpoint_seconds(job: ElasticJob) -> float:
    """The longest wait of extra workers for a checkpoint, where any is told."""
    unsaid = 0.0 if keeps_in_memory(job) else EXTRA_CHECKPOINT_SECONDS
    return float(job.spec.elastic_policy.grow_at_checkpoint_seconds) or unsaid


def keeps_in_memory(job: ElasticJob) -> bool:
    """Whether the workers keep their checkpoints in memory."""
    return job.spec.replica_specs[names.WORKER].memory_checkpoint is not None
