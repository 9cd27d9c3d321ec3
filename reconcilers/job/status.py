"""An ElasticJob's phase, counts and conditions, from its workers and its world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from controller.wording import counted, shortened
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import ReplicaStatus
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionData, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.launcher_flags import with_launcher_flags
from reconcilers.conditions.loss import with_loss
from reconcilers.conditions.saving import with_saving
from reconcilers.conditions.scaled import SCALED
from reconcilers.conditions.sidecars import with_sidecars
from reconcilers.conditions.silent import AGENTS_SILENT, with_silent
from reconcilers.conditions.slow import SLOW, Neighbour, with_slow
from reconcilers.conditions.steps_known import with_steps_known
from reconcilers.observed.conditions import WORKERS_SCHEDULED, condition_of, is_true, with_condition
from reconcilers.observed.extra import extra_slots
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import training_types
from reconcilers.observed.worker_state import finished, hindered_by, stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.roles import progress as roles_progress
from reconcilers.roles.hot import PARAMETER_SERVER_HOT, with_hot

RUNNING, SUCCEEDED, FAILED, SUSPENDED = "Running", "Succeeded", "Failed", "Suspended"
WORLD_FORMED = "WorldFormed"


WORKERS_STARTED = "WorkersStarted"
WORKERS_GIVEN_UP = "WorkersGivenUp"
MASTER_IGNORED = "MasterReplicaIgnored"
NO_REPLICAS = "NoReplicas"
NO_REPLICAS_MESSAGE = "replicas is 0, so the job has no Pods: raise replicas in spec.replicaSpecs to start it"
MAX_WHY = 96
"""Characters of the world's reason in a condition; the world itself has all of it."""


ENDED = "the job has ended"
_WHILE_IT_TRAINS = (WORLD_FORMED, SLOW, AGENTS_SILENT, PARAMETER_SERVER_HOT)
_WAITS = (WORKERS_SCHEDULED, WORKERS_STARTED, SCALED)
"""Of a job that has ended they are False as they were, since they may be why; nothing waits any more."""
_NO_WAIT = {WORKERS_SCHEDULED: "Scheduled", WORKERS_STARTED: "Started"}


def replica_statuses(job: ElasticJob, workers: Workers, standby: int = 0) -> dict[str, ReplicaStatus]:
    """`standby` of the training workers stand by."""
    statuses = {}
    for type_ in training_types(job):
        idle = standby if type_ == names.WORKER else 0
        there = len(workers.of_type.get(type_, ()))
        others = Counter(w.status.phase for w in workers.exceptional if w.spec.type == type_)
        statuses[type_] = ReplicaStatus(
            desired=job.spec.replica_specs[type_].replicas,
            pending=others[None] + others[WorkerPhase.PENDING],
            active=there - others.total() + others[WorkerPhase.RUNNING] - idle,
            succeeded=others[WorkerPhase.SUCCEEDED],
            failed=others[WorkerPhase.FAILED],
            standby=idle,
        )
    return statuses


def worker_pods(job: ElasticJob, workers: Workers) -> int:
    """What the scale subresource compares with `replicas`: those beyond it are there to stand by."""
    count, spec = len(workers.training), job.spec.replica_specs.get(names.WORKER)
    return count if spec is None else max(min(count, spec.replicas), count - spec.standby)


def has_succeeded(workers: Workers, rendezvous: Rendezvous) -> bool:
    """Whether training is over: all of the world's members are done, or, without a world, all workers.

    Workers of other types than `worker` (parameter servers, evaluators) serve training and end with it.
    """
    training: Iterable[ElasticWorker] = workers.training or workers
    if rendezvous.phase is RendezvousPhase.FORMED:
        members = set(rendezvous.members)
        training = (w for w in training if w.spec.index in members)
    elif rendezvous.phase is RendezvousPhase.REFORMING:
        return False
    ends = (finished(w, rendezvous.round) for w in training)
    return next(ends, False) and all(ends)


def phase_of(job: ElasticJob, workers: Workers, rendezvous: Rendezvous) -> JobPhase:
    """The phase of a job that has neither finished nor been suspended."""
    if in_cluster(job):
        return roles_progress.phase_of(job, workers)
    if rendezvous.phase is RendezvousPhase.FORMED:
        return JobPhase.RUNNING
    if rendezvous.phase is RendezvousPhase.REFORMING or rendezvous.round:
        return JobPhase.RESTARTING
    training = workers.training or workers
    wanted = sum(job.spec.replica_specs[t].replicas for t in {w.spec.type for w in training})
    started = [w for w in training if w.status.phase in (WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED)]
    return JobPhase.RUNNING if training and len(started) >= wanted else JobPhase.PENDING


def progress_conditions(
    job: ElasticJob,
    workers: Workers,
    phase: JobPhase,
    rendezvous: Rendezvous,
    now: datetime,
    neighbours: Sequence[Neighbour] = (),
) -> list[Condition]:
    """The conditions that follow what is going on; the final ones are set by `succeeded` and `failed`."""
    conditions = list(job.status.conditions)
    running = phase is JobPhase.RUNNING
    reason, why_not = (phase.value, "") if _wants_pods(job) else (NO_REPLICAS, NO_REPLICAS_MESSAGE)
    conditions = with_condition(conditions, RUNNING, _status(running), reason, why_not, now)
    if in_cluster(job):
        conditions = roles_progress.with_cluster(conditions, job, workers, now)
        conditions = with_hot(conditions, job, workers, now)
    else:
        formed = rendezvous.phase is RendezvousPhase.FORMED
        why, phase_of_world = shortened(rendezvous.why, MAX_WHY), rendezvous.phase.value
        conditions = with_condition(conditions, WORLD_FORMED, _status(formed), phase_of_world, why, now)
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
    conditions = with_steps_known(conditions, job, workers.telling_steps, now)
    conditions = with_loss(conditions, job, workers, now)
    conditions = with_saving(conditions, workers, rendezvous, now)
    conditions = with_slow(conditions, workers, rendezvous, neighbours, now)
    conditions = with_silent(conditions, job, workers, now)
    conditions = with_sidecars(conditions, workers, now)
    return _with_waits(conditions, workers.exceptional, extra_slots(job), now)


def _wants_pods(job: ElasticJob) -> bool:
    return any(spec.replicas or spec.standby for spec in job.spec.replica_specs.values())


def with_given_up(conditions: Sequence[Condition], why: Collection[str], now: datetime) -> list[Condition]:
    """The conditions, with this one once there was a worker that is not started again."""
    if why:
        message, data = "; ".join(why), ConditionData(count=len(why))
        return with_condition(
            conditions, WORKERS_GIVEN_UP, ConditionStatus.TRUE, "BudgetSpent", message, now, data
        )
    if any(c.type == WORKERS_GIVEN_UP for c in conditions):
        return with_condition(conditions, WORKERS_GIVEN_UP, ConditionStatus.FALSE, "NoneGivenUp", "", now)
    return list(conditions)


def _with_waits(
    conditions: list[Condition], workers: Sequence[ElasticWorker], probes: Collection[int], now: datetime
) -> list[Condition]:
    """What Pods wait for that have no node, or do not start on theirs. Of probes that is no news."""
    pending = [worker for worker in workers if worker.status.phase is WorkerPhase.PENDING]
    wanted = [w for w in pending if w.spec.type != names.WORKER or w.spec.index not in probes]
    stuck = [(worker.metadata.name, found) for worker in wanted if (found := stuck_by(worker))]
    late = [(worker.metadata.name, found) for worker in pending if (found := hindered_by(worker))]
    conditions = _with_wait(conditions, WORKERS_SCHEDULED, "cannot be scheduled", stuck, now)
    return _with_wait(conditions, WORKERS_STARTED, "cannot start", late, now)


def _with_wait(
    conditions: list[Condition],
    type_: str,
    what: str,
    waiting: Sequence[tuple[str, Condition]],
    now: datetime,
) -> list[Condition]:
    """`waiting`: the workers, each with why it waits. The condition is not there before one was."""
    known = condition_of(conditions, type_)
    if waiting:
        is_new = known is None or known.status is not ConditionStatus.FALSE
        since = now if known is None or is_new else known.last_transition_time
        (name, why), pods = waiting[0], counted(len(waiting), "Pod")
        message = f"{pods} {what}: {why.message} ({name}, since {since:%Y-%m-%dT%H:%M:%SZ})"
        data = ConditionData(worker=name, count=len(waiting))
        return with_condition(conditions, type_, ConditionStatus.FALSE, why.reason, message, now, data)
    if known is not None:
        return with_condition(conditions, type_, ConditionStatus.TRUE, _NO_WAIT[type_], "", now)
    return conditions


def final_conditions(
    conditions: Sequence[Condition], phase: JobPhase, reason: str, message: str, now: datetime
) -> list[Condition]:
    """The end of the job: one of Succeeded and Failed becomes True."""
    result = without_present(conditions, phase, now)
    result = [
        c.model_copy(update={"message": shortened(f"{ENDED}; {c.message}", MAX_CONDITION_MESSAGE)})
        if c.type in _WAITS and c.status is ConditionStatus.FALSE
        else c
        for c in result
    ]
    result = with_condition(result, RUNNING, ConditionStatus.FALSE, phase.value, "", now)
    type_ = SUCCEEDED if phase is JobPhase.SUCCEEDED else FAILED
    return with_condition(result, type_, ConditionStatus.TRUE, reason, message, now)


def with_reason_of_world(conditions: Sequence[Condition], world: Rendezvous) -> list[Condition]:
    """The conditions, of which the one of the world says what the world itself does."""
    why = shortened(world.why, MAX_WHY)
    return [
        c.model_copy(update={"message": why})
        if c.type == WORLD_FORMED and c.status is ConditionStatus.FALSE
        else c
        for c in conditions
    ]


def without_present(conditions: Sequence[Condition], phase: JobPhase, now: datetime) -> list[Condition]:
    """The conditions of a job that has ended in this phase: nobody trains, in its last world or slowly."""
    result = list(conditions)
    for type_ in _WHILE_IT_TRAINS:
        if is_true(result, type_):
            result = with_condition(result, type_, ConditionStatus.FALSE, phase.value, ENDED, now)
    return result


def _status(value: bool) -> ConditionStatus:
    return ConditionStatus.TRUE if value else ConditionStatus.FALSE
