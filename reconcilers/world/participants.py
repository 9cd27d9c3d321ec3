"""Participants and bounds of a world, from ElasticWorkers. Pure.

Extra workers are those beyond the number that a job needs (`status.scaling.base`). The world does not wait
for one that finds no node, or whose Pod was taken. Other modules request them and give them back.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from crds import names
from crds.agent_report import CHECKPOINT_SECONDS, PROTOCOL, AgentReport, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.endings import exhausted_workers, spare_workers
from reconcilers.failure.meaning import meaning_of
from reconcilers.observed.builder import DEFAULT_GRACE_SECONDS, grace_seconds
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.slots import base_of, extra_slots, present_slots, slots_of
from reconcilers.observed.worker_state import current_report, hindered_by, leaving_pod, stuck_by
from reconcilers.observed.workers import Workers

MAX_REASON = 96
"""Most characters of a worker's message in the world's reason."""


@dataclass(slots=True)
class Participant:
    """A worker slot that is wanted, or will take the place of one, by the last reads.

    It never changes. It is not frozen, since that would triple the time to make one for each worker.
    """

    index: int
    incarnation: int
    alive: bool
    """Whether its Pod has neither ended nor been lost, is not being deleted, and waits for no restart."""
    succeeded: bool = False
    """Whether its Pod ended well."""
    gone_because: str = ""
    """Reason why it is not alive."""
    stops_in_good_order: bool = False
    """Whether it has time to save: its Pod is being deleted, and so does not count as alive."""
    report: AgentReport | None = None
    """Report of the agent of this incarnation and Pod."""
    seconds_since_joined: float = 0.0
    """Time for which its agent has waited for a world."""
    seconds_since_checkpoint: float | None = None
    """Time since it last saved a checkpoint."""
    replaces: int | None = None
    """The slot whose place it will take."""
    leaving: str = ""
    """Reason why it must not be in a world, although it could be."""
    domain: str = ""
    """Domain of the node of its last Pod; empty without one, and in a job without domains."""
    leaving_pod: str = ""
    """A present or earlier Pod of the slot that leaves and may still train."""

    @property
    def joinable(self) -> bool:
        if not self.alive or self.leaving or self.leaving_pod or self.report is None:
            return False
        return self.report.protocol >= PROTOCOL and self.report.state is not AgentState.STOPPED


@dataclass(frozen=True)
class Bounds:
    """Size limits of the world, and waits for more workers."""

    desired: int
    minimum: int
    node_unit: int
    last_call_seconds: float
    shrink_after_seconds: float
    grow_at_checkpoint_seconds: float = 0.0
    grace_seconds: float = 30.0
    """Time of a worker's Pod to stop."""
    standby: int = 0
    """Desired number of workers beside the world, ready to step in."""

    def without(self, left_out: int) -> Bounds:
        """Return the bounds without so many workers, which standby workers replace."""
        return replace(self, desired=min(self.desired, self.desired + self.standby - left_out))

    def floor(self, count: int) -> int:
        """Return the largest allowed size of a world of at most `count` workers; 0 below the minimum."""
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
    """Times in seconds since events of each worker were first observed, by uid."""

    joined: Mapping[str, float] = field(default_factory=dict)
    """Time since it began to wait for a world."""
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    """Estimated time since it made the step of its last checkpoint."""
    unheard: Mapping[str, float] = field(default_factory=dict)
    """Time since its Pod began to run, if its agent has never reported."""


def participants_of(job: ElasticJob, workers: Sequence[ElasticWorker], ages: Ages) -> list[Participant]:
    """Return the training workers that are wanted, replace a wanted one, or have to leave the world."""
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


def on_faulty_nodes(participants: Sequence[Participant], faulty: Mapping[int, str]) -> Sequence[Participant]:
    """Return the participants, with those on faulty nodes marked as lost.

    Args:
        faulty: the finding, by index.
    """
    if not faulty:
        return participants
    return [
        replace(p, alive=False, gone_because=faulty[p.index]) if p.index in faulty else p
        for p in participants
    ]


def is_waiting(report: AgentReport | None) -> Hashable:
    """Return a value that changes whenever an agent begins, or ceases, to wait for a world."""
    if report is None:
        return None
    return (report.pod_uid, report.state in (AgentState.READY, AgentState.FAILED))


def checkpoint_of(report: AgentReport | None) -> int | None:
    """Return the step of the last checkpoint that an agent has reported."""
    return None if report is None or report.progress is None else report.progress.checkpoint_step


def seconds_behind_checkpoint(report: AgentReport | None) -> float:
    """Return the least age of the last checkpoint's step when the agent reported last, which may be late.

    The age is at most the longest delay of a report: a script may number checkpoints unlike steps.
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
"""Longest wait of extra workers for a checkpoint, if a job reports checkpoints and sets no other time."""


@dataclass(frozen=True)
class Extra:
    """The extra workers by state, from the least useful state to the most useful."""

    lost: frozenset[int] = frozenset()
    """Workers whose Pods were taken away: they get no other Pod."""
    exhausted: frozenset[int] = frozenset()
    """Workers whose Pods have failed too often to get another."""
    stuck: frozenset[int] = frozenset()
    on_their_way: frozenset[int] = frozenset()
    starting: frozenset[int] = frozenset()
    training: frozenset[int] = frozenset()
    """Members of the world, or of the last one while it is broken."""


def extra_of(job: ElasticJob, workers: Workers, published: Rendezvous) -> Extra:
    """Sort the extra workers by state."""
    if not (slots := extra_slots(job)):
        return Extra()
    members = set(published.members) if published.phase is not RendezvousPhase.FORMING else set()
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
    bounds: Bounds,
    job: ElasticJob,
    workers: Workers,
    published: Rendezvous,
    participants: Iterable[Participant],
) -> Bounds:
    """Return the bounds of a world that does not wait for extra workers that are stuck, lost or exhausted.

    If checkpoints are reported, and are not in memory, the other extra workers wait for the next one.
    """
    if base_of(job) is None:
        return bounds
    extra, world = extra_of(job, workers, published), set(published.members)
    bounds = replace(
        bounds, desired=bounds.desired - len(extra.stuck) - len(extra.lost) - len(extra.exhausted)
    )
    saves = any(p.seconds_since_checkpoint is not None for p in participants if p.index in world)
    return replace(bounds, grow_at_checkpoint_seconds=checkpoint_seconds(job)) if saves else bounds


def checkpoint_seconds(job: ElasticJob) -> float:
    """Return the longest wait of extra workers for a checkpoint, in a job that reports checkpoints."""
    default = 0.0 if keeps_in_memory(job) else EXTRA_CHECKPOINT_SECONDS
    return float(job.spec.elastic_policy.grow_at_checkpoint_seconds) or default


def keeps_in_memory(job: ElasticJob) -> bool:
    """Whether the workers keep their checkpoints in memory."""
    return job.spec.replica_specs[names.WORKER].memory_checkpoint is not None
