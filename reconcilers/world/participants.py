"""From ElasticWorkers to the participants of world forming."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from crds import names
from crds.elasticjob import ElasticJob, RendezvousPhase
from crds.elasticworker import AgentReport, AgentState, ElasticWorker, WorkerPhase
from reconcilers.pod.worker_status import current_report
from reconcilers.world.minimum import minimum_workers
from reconcilers.world.rendezvous import Bounds, Participant
from reconcilers.world.slots import present_slots, slots_of

MAX_REASON = 96
"""Characters of a worker's message that the world's reason quotes."""


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
    )


@dataclass(frozen=True)
class Ages:
    """How long ago we saw something of each worker, by uid."""

    joined: Mapping[str, float] = field(default_factory=dict)
    """When it began to wait for a world."""
    checkpoint: Mapping[str, float] = field(default_factory=dict)
    """When it made the step of its last checkpoint, as far as is known."""
    idle: Mapping[str, float] = field(default_factory=dict)
    """Of a job whose workers follow its shards: since when those without a lease hold none."""


def participants_of(job: ElasticJob, workers: Sequence[ElasticWorker], ages: Ages) -> list[Participant]:
    """The training workers that are wanted, or are to take the place of one, or are to leave the world."""
    present = set(present_slots(job, names.WORKER))
    sources = {target: source for source, target in slots_of(job, names.WORKER).moves.items()}
    world = job.status.rendezvous
    members = set(world.members) if world and world.phase is RendezvousPhase.FORMED else set()
    known = present | members
    return [
        _participant(
            worker,
            ages,
            replaces=sources.get(worker.spec.index),
            leaving="" if worker.spec.index in present else f"worker {worker.spec.index} is no longer wanted",
        )
        for worker in workers
        if worker.spec.type == names.WORKER and worker.spec.index in known
    ]


def is_waiting(report: AgentReport | None) -> Hashable:
    """A value that changes whenever an agent begins, or ceases, to wait for a world."""
    if report is None:
        return None
    return (report.pod_uid, report.state in (AgentState.READY, AgentState.FAILED))


def checkpoint_of(report: AgentReport | None) -> int | None:
    """The step of the last checkpoint that an agent told of."""
    return None if report is None or report.progress is None else report.progress.checkpoint_step


LATE_CHECKPOINT_SECONDS = 10.0
"""A checkpoint that nobody awaits is reported so late at most (`agent/report/reporter.py`)."""


def seconds_behind_checkpoint(report: AgentReport | None) -> float:
    """How long ago that step was made, at least, when the agent reported last; it may report late.

    Not more than it can be late: a script may number its checkpoints otherwise than its steps.
    """
    progress = None if report is None else report.progress
    if progress is None or progress.checkpoint_step is None:
        return 0.0
    steps = max(progress.step - progress.checkpoint_step, 0)
    return min(steps * (progress.seconds_per_step or 0.0), LATE_CHECKPOINT_SECONDS)


def _participant(worker: ElasticWorker, ages: Ages, *, replaces: int | None, leaving: str) -> Participant:
    status = worker.status
    judged = status.observed_incarnation == worker.spec.incarnation
    succeeded = judged and status.phase is WorkerPhase.SUCCEEDED
    failed = judged and status.phase is WorkerPhase.FAILED
    return Participant(
        index=worker.spec.index,
        incarnation=worker.spec.incarnation,
        alive=not succeeded and not failed,
        succeeded=succeeded,
        gone_because=_first_line(status.message) if failed else "",
        stops_in_good_order=failed and bool(status.last_exit and status.last_exit.in_good_order),
        report=current_report(worker),
        seconds_since_joined=ages.joined.get(worker.metadata.uid, 0.0),
        seconds_since_checkpoint=ages.checkpoint.get(worker.metadata.uid),
        replaces=replaces,
        leaving=leaving,
    )


def _first_line(message: str) -> str:
    return message.partition("\n")[0][:MAX_REASON]
