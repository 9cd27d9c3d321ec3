"""An ElasticJob's phase, counts and conditions, from its workers and its world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from controller.wording import shortened
from crds import names
from crds.elasticjob import (
    ElasticJob,
    JobFailure,
    JobPhase,
    Rendezvous,
    RendezvousPhase,
    ReplicaStatus,
)
from crds.elasticworker import ElasticWorker, WorkerExit, WorkerPhase
from crds.model import Condition, ConditionStatus
from reconcilers.conditions import with_condition
from reconcilers.job.launcher_flags import with_launcher_flags
from reconcilers.job.older_agents import with_older_agents
from reconcilers.pod.worker_status import REPLACED, finished, stuck_by

RUNNING, SUCCEEDED, FAILED, SUSPENDED = "Running", "Succeeded", "Failed", "Suspended"
WORLD_FORMED = "WorldFormed"
WORKERS_SCHEDULED = "WorkersScheduled"
WORKERS_GIVEN_UP = "WorkersGivenUp"
MASTER_IGNORED = "MasterReplicaIgnored"
MAX_WHY = 128
"""Characters of the world's reason in a condition; the world itself has all of it."""


def training_types(job: ElasticJob) -> list[str]:
    """The replica types that get workers: all but DLRover's masters."""
    return [type_ for type_ in job.spec.replica_specs if type_ not in names.MASTER_TYPES]


def replica_statuses(
    job: ElasticJob, workers: Sequence[ElasticWorker], standby: int = 0
) -> dict[str, ReplicaStatus]:
    """`standby` of the training workers stand by."""
    statuses = {}
    for type_ in training_types(job):
        idle = standby if type_ == names.WORKER else 0
        phases = [w.status.phase for w in workers if w.spec.type == type_]
        statuses[type_] = ReplicaStatus(
            desired=job.spec.replica_specs[type_].replicas,
            pending=sum(phase in (None, WorkerPhase.PENDING) for phase in phases),
            active=phases.count(WorkerPhase.RUNNING) - idle,
            succeeded=phases.count(WorkerPhase.SUCCEEDED),
            failed=phases.count(WorkerPhase.FAILED),
            standby=idle,
        )
    return statuses


def worker_pods(job: ElasticJob, workers: Sequence[ElasticWorker]) -> int:
    """What the scale subresource compares with `replicas`: those beyond it are there to stand by."""
    count, spec = sum(w.spec.type == names.WORKER for w in workers), job.spec.replica_specs.get(names.WORKER)
    return count if spec is None else max(min(count, spec.replicas), count - spec.standby)


def has_succeeded(workers: Sequence[ElasticWorker], rendezvous: Rendezvous) -> bool:
    """Whether training is over: all of the world's members are done, or, without a world, all workers.

    Workers of other types than `worker` (parameter servers, evaluators) serve training and end with it.
    """
    training = [w for w in workers if w.spec.type == names.WORKER] or list(workers)
    if rendezvous.phase is RendezvousPhase.FORMED:
        members = set(rendezvous.members)
        training = [w for w in training if w.spec.index in members]
    elif rendezvous.phase is RendezvousPhase.REFORMING:
        return False
    return bool(training) and all(finished(w, rendezvous.round) for w in training)


def phase_of(job: ElasticJob, workers: Sequence[ElasticWorker], rendezvous: Rendezvous) -> JobPhase:
    """The phase of a job that has neither finished nor been suspended."""
    if rendezvous.phase is RendezvousPhase.FORMED:
        return JobPhase.RUNNING
    if rendezvous.phase is RendezvousPhase.REFORMING or rendezvous.round:
        return JobPhase.RESTARTING
    training = [w for w in workers if w.spec.type == names.WORKER] or list(workers)
    wanted = sum(job.spec.replica_specs[t].replicas for t in {w.spec.type for w in training})
    started = [w for w in training if w.status.phase in (WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED)]
    return JobPhase.RUNNING if training and len(started) >= wanted else JobPhase.PENDING


def progress_conditions(
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    phase: JobPhase,
    rendezvous: Rendezvous,
    now: datetime,
) -> list[Condition]:
    """The conditions that follow what is going on; the final ones are set by `succeeded` and `failed`."""
    conditions = list(job.status.conditions)
    running = phase is JobPhase.RUNNING
    conditions = with_condition(conditions, RUNNING, _status(running), phase.value, "", now)
    formed = rendezvous.phase is RendezvousPhase.FORMED
    why = shortened(rendezvous.reason, MAX_WHY)
    conditions = with_condition(conditions, WORLD_FORMED, _status(formed), rendezvous.phase.value, why, now)
    if job.spec.suspend or any(c.type == SUSPENDED for c in conditions):
        reason = "Suspended" if job.spec.suspend else "Resumed"
        conditions = with_condition(conditions, SUSPENDED, _status(job.spec.suspend), reason, "", now)
    masters = [type_ for type_ in job.spec.replica_specs if type_ in names.MASTER_TYPES]
    if masters:
        message = f"replicaSpecs[{masters[0]}] is ignored: dlr has no master Pod"
        conditions = with_condition(
            conditions, MASTER_IGNORED, ConditionStatus.TRUE, "NoMaster", message, now
        )
    conditions = with_launcher_flags(conditions, job, now)
    conditions = with_older_agents(conditions, job, workers, now)
    return _with_scheduling(conditions, workers, now)


def with_given_up(conditions: Sequence[Condition], why: Iterable[str], now: datetime) -> list[Condition]:
    """The conditions, with this one once there was a worker that is not started again."""
    message = "; ".join(why)
    if message:
        return with_condition(conditions, WORKERS_GIVEN_UP, ConditionStatus.TRUE, "BudgetSpent", message, now)
    if any(c.type == WORKERS_GIVEN_UP for c in conditions):
        return with_condition(conditions, WORKERS_GIVEN_UP, ConditionStatus.FALSE, "NoneGivenUp", "", now)
    return list(conditions)


def _with_scheduling(
    conditions: list[Condition], workers: Sequence[ElasticWorker], now: datetime
) -> list[Condition]:
    stuck = [(worker, found) for worker in workers if (found := stuck_by(worker)) is not None]
    if stuck:
        worker, condition = stuck[0]
        message = f"{len(stuck)} Pods cannot be scheduled; {worker.metadata.name}: {condition.message}"
        return with_condition(
            conditions, WORKERS_SCHEDULED, ConditionStatus.FALSE, condition.reason, message, now
        )
    if any(c.type == WORKERS_SCHEDULED for c in conditions):
        return with_condition(conditions, WORKERS_SCHEDULED, ConditionStatus.TRUE, "Scheduled", "", now)
    return conditions


def final_conditions(
    conditions: Sequence[Condition], phase: JobPhase, reason: str, message: str, now: datetime
) -> list[Condition]:
    """The end of the job: one of Succeeded and Failed becomes True."""
    result = with_condition(conditions, RUNNING, ConditionStatus.FALSE, phase.value, "", now)
    type_ = SUCCEEDED if phase is JobPhase.SUCCEEDED else FAILED
    return with_condition(result, type_, ConditionStatus.TRUE, reason, message, now)


def last_failure(job: ElasticJob, workers: Sequence[ElasticWorker]) -> JobFailure | None:
    """The newest end of a Pod, unless the job already shows a newer failure."""
    newest = job.status.last_failure
    for worker in workers:
        end = worker.status.last_exit
        told = end is not None and end.reason != REPLACED  # what was first is told as a failure in place
        if end is not None and told and (newest is None or end.time > newest.time):
            newest = failure_of_pod(worker.metadata.name, end)
    return newest


def failure_of_pod(worker: str, end: WorkerExit) -> JobFailure:
    return JobFailure(
        worker=worker,
        rank=end.rank,
        exit_class=end.exit_class.value,
        exit_code=end.exit_code,
        message=end.message,
        time=end.time,
    )


def _status(value: bool) -> ConditionStatus:
    return ConditionStatus.TRUE if value else ConditionStatus.FALSE
