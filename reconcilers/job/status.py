"""The status that a reconcile of an ElasticJob writes. Pure.

A job goes on, is suspended, ends, or has ended: each case has a function, and `status_of` sets all fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from controller.wording import first_line
from crds import names
from crds.agent_report import MAX_LATE_GROUPS, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import MAX_MESSAGE, ElasticJobStatus, JobFailure, JobWarning, ReplicaStatus
from crds.model import Condition, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.replica_groups import ReplicaGroupStatus
from crds.texts import shortened
from reconcilers.conditions.life import FAILED, NO_REPLICAS, RUNNING, WORLD_FORMED, hindrances
from reconcilers.conditions.scaled import phase_while_scaling
from reconcilers.conditions.table import judged
from reconcilers.failure.facts import failures_of, last_failure
from reconcilers.failure.policy import Assessment, Count, blame_of
from reconcilers.look import DesiredJob
from reconcilers.observed.conditions import ConditionState, condition_of, is_false, is_true, observed_at
from reconcilers.observed.groups import group_of
from reconcilers.observed.slots import training_types
from reconcilers.observed.worker_state import current_report, finished
from reconcilers.observed.workers import Workers
from reconcilers.scale.rolling import freshness
from reconcilers.world.decision import blaming
from reconcilers.world.rendezvous import at_the_end

QUIET_PHASES = (JobPhase.RUNNING, JobPhase.SUCCEEDED, JobPhase.SUSPENDED)
"""Phases that need no reason and message."""


def going_on(
    look: DesiredJob, failures: Assessment, phase: JobPhase, world: Rendezvous | None, standby: int = 0
) -> ElasticJobStatus:
    """Return the status of a job that goes on.

    Args:
        world: None for a job that has none.
    """
    job, claim = look.job, look.seen.vetting.claim
    fresh = freshness(job, look.workers, look.seen.pods) if look.scale_requested else look.fresh
    look = judged(replace(look, phase=phase, rendezvous=world, fresh=fresh))
    return status_of(
        replace(look, phase=phase_while_scaling(phase, look.conditions)),
        failures=failures,
        active_check=claim.name if claim else None,
        suspected_at=look.standing.suspected_at,
        start_time=job.status.start_time or look.now,
        standby=standby,
    )


def suspended(look: DesiredJob, world: Rendezvous | None) -> ElasticJobStatus:
    """Return the status of a suspended job, or of a resumed one whose old Pods are still being replaced."""
    return status_of(judged(replace(look, phase=JobPhase.SUSPENDED, rendezvous=world)))


def ended(
    look: DesiredJob, phase: JobPhase, reason: str, message: str, failures: Assessment | None = None
) -> ElasticJobStatus:
    """Return the status of a job that ends now, by failures or otherwise."""
    world = look.job.status.rendezvous
    if world is not None:
        blame = blame_of(failures.incident.failure) if failures and failures.incident else None
        world = at_the_end(blaming(world, blame))
    end = ConditionState(ConditionStatus.TRUE, reason, message)
    ending = failures.ending if failures else None
    return status_of(
        judged(replace(look, phase=phase, rendezvous=world, end=end)),
        failures=failures,
        last_failure=ending.failure if ending else last_failure(look.job, look.workers),
        start_time=look.job.status.start_time,
        completion_time=look.now,
    )


def over(look: DesiredJob) -> ElasticJobStatus:
    """Return the status of a finished job: its counts follow its Pods."""
    before = look.seen.job.status
    assert before.phase is not None
    return status_of(
        replace(
            look,
            phase=before.phase,
            rendezvous=before.rendezvous,
            conditions=before.conditions,
            warnings=before.warnings,
        ),
        start_time=before.start_time,
        completion_time=before.completion_time,
    )


def status_of(
    look: DesiredJob,
    *,
    failures: Assessment | None = None,
    last_failure: JobFailure | None = None,
    active_check: str | None = None,
    suspected_at: datetime | None = None,
    start_time: datetime | None = None,
    completion_time: datetime | None = None,
    standby: int = 0,
) -> ElasticJobStatus:
    """Return the status with all fields but the account of time, which follows from it.

    Args:
        failures: None if no failure was judged in this reconcile.
    """
    before, wanted, job, world = look.seen.job.status, look.job.status, look.job, look.rendezvous
    reason, message = why_not_training(look.phase, look.conditions, look.warnings, world)
    queue = wanted.admission
    if look.phase is JobPhase.SUSPENDED and queue is not None and not job.spec.suspend:
        reason, message = queue.reason, shortened(first_line(queue.message), MAX_MESSAGE)
    count = failures.count if failures else Count(before.restarts, before.failure_budget, before.last_failure)
    counted, departed = before.failures, wanted.departed
    if not before.finished:
        of_pods = (worker.status.failures for worker in look.workers.exceptional)
        counted, departed = failures_of(before, count.restarts, of_pods, departed)
    status = before.model_copy(
        update={
            "phase": look.phase,
            "reason": reason,
            "message": message,
            "conditions": list(look.conditions),
            "warnings": list(look.warnings),
            "replica_statuses": replica_statuses(job, look.workers, standby),
            "rendezvous": world,
            "cluster": wanted.cluster,
            "replica_group": replica_group_of(job, look.workers, world),
            "scaling": wanted.scaling,
            "scale_request": wanted.scale_request,
            "retired": wanted.retired,
            "migrations": wanted.migrations,
            "resources": wanted.resources,
            "active_check": active_check,
            "suspected_at": suspected_at or before.suspected_at,
            "replicas": worker_pods(job, look.workers),
            "selector": f"{names.LABEL_JOB}={job.metadata.name},{names.LABEL_TYPE}={names.WORKER}",
            "restarts": count.restarts,
            "failures": counted,
            "departed": departed,
            "start_time": start_time,
            "completion_time": completion_time,
            "last_failure": last_failure or count.last_failure,
            "failure_budget": count.budget,
        }
    )
    return observed_at(status, job.metadata.generation)


def replica_group_of(
    job: ElasticJob, workers: Workers, world: Rendezvous | None
) -> ReplicaGroupStatus | None:
    """Return the progress of a job that is a replica group, by the reports of its world's members.

    A suspended job no longer has a world, but its processes take part until they have left.
    """
    if group_of(job) is None or world is None:
        return None
    members = set(world.members) if world.phase is RendezvousPhase.FORMED else set()
    if job.stops:
        members = {each.spec.index for each in workers.training if runs_round(each, world.round)}
    reports = [current_report(each) for each in workers.training if each.spec.index in members]
    parts = [each.replicas for each in reports if each is not None and each.replicas is not None]
    there = [each for each in parts if each.round == world.round]
    late_version = max((each.late_version for each in there if each.late_groups), default=0)
    late = {index for each in there if each.late_version == late_version for index in each.late_groups}
    return ReplicaGroupStatus(
        round=world.round,
        ready=bool(members) and len(there) == len(members),
        version=min((each.version for each in there), default=0),
        broken_version=max((each.broken_version for each in there), default=0),
        left_out_version=max((each.left_out_version for each in there), default=0),
        late_version=late_version,
        late_groups=sorted(late)[:MAX_LATE_GROUPS],
    )


def runs_round(worker: ElasticWorker, round_: int) -> bool:
    """Whether processes of the round run in the worker's Pod."""
    report = current_report(worker)
    return report is not None and report.state is AgentState.RUNNING and report.observed_round == round_


def replica_statuses(job: ElasticJob, workers: Workers, standby: int = 0) -> dict[str, ReplicaStatus]:
    """Count the workers of each type by state; `standby` of the training workers stand by."""
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
    """Return the count that the scale subresource compares with `replicas`, without standby workers."""
    count, spec = len(workers.training), job.spec.replica_specs.get(names.WORKER)
    return count if spec is None else max(min(count, spec.replicas), count - spec.standby)


def has_succeeded(workers: Workers, rendezvous: Rendezvous) -> bool:
    """Whether training is over: all of the world's members are done, or, without a world, all workers.

    Workers of other types than `worker` serve training and end with it.
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
    """Return the phase of a job that has neither finished nor been suspended."""
    if rendezvous.phase is RendezvousPhase.FORMED:
        return JobPhase.RUNNING
    if rendezvous.phase is RendezvousPhase.REFORMING or rendezvous.round:
        return JobPhase.RESTARTING
    training = workers.training or workers
    wanted = sum(job.spec.replica_specs[t].replicas for t in {w.spec.type for w in training})
    started = [w for w in training if w.status.phase in (WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED)]
    return JobPhase.RUNNING if training and len(started) >= wanted else JobPhase.PENDING


def why_not_training(
    phase: JobPhase | None,
    conditions: Sequence[Condition],
    warnings: Sequence[JobWarning],
    world: Rendezvous | None,
) -> tuple[str, str]:
    """Return reason and message in one line for people; both empty if the phase is explanation enough."""
    if phase is None or phase in QUIET_PHASES:
        return "", ""
    cause = _cause(phase, conditions, warnings, world)
    if cause is not None:
        return cause.reason or cause.type, shortened(first_line(cause.message), MAX_MESSAGE)
    if world is None or world.phase is RendezvousPhase.FORMED or phase.finished:
        return "", ""
    return "", shortened(first_line(world.why), MAX_MESSAGE)


def _cause(
    phase: JobPhase, conditions: Sequence[Condition], warnings: Sequence[JobWarning], world: Rendezvous | None
) -> Condition | JobWarning | None:
    if phase is JobPhase.FAILED:
        return condition_of(conditions, FAILED) if is_true(conditions, FAILED) else None
    running = condition_of(conditions, RUNNING)
    if running is not None and running.reason == NO_REPLICAS:
        return running
    if (hindrance := next(hindrances(warnings), None)) is not None:
        return hindrance
    # A world has its own reason; without one, the condition has it.
    waits = world is None and is_false(conditions, WORLD_FORMED)
    return condition_of(conditions, WORLD_FORMED) if waits else None
