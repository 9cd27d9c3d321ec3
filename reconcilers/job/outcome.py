"""The status that a look at a job ends with, and the Events that tell of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controller.events import EventType
from controller.wording import counted
from crds import names
from crds.cluster_status import ClusterStatus
from crds.elasticjob import ElasticJob
from crds.elasticworker import ExitClass
from crds.job_status import ElasticJobStatus
from crds.model import Condition, ConditionStatus
from crds.nodecheck import NodeCheck
from crds.protocol import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.job_finding import (
    NODES_CHECKED,
    QUIET,
    Finding,
    interrupted,
)
from reconcilers.conditions.loss import events_of_loss, with_loss
from reconcilers.conditions.saving import events_of_saving
from reconcilers.conditions.silent import events_of_silent
from reconcilers.conditions.slow import Neighbour, events_of_slow
from reconcilers.conditions.steps_known import NO_STEPS, STEPS_KNOWN
from reconcilers.failure.facts import last_failure
from reconcilers.failure.incidents import Incident, in_one_line
from reconcilers.failure.policy import Assessment, blame_of
from reconcilers.job import status as job_status
from reconcilers.observed.conditions import WORKERS_SCHEDULED, condition_of, is_same, with_condition
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import Migration, named
from reconcilers.observed.workers import Workers
from reconcilers.roles.hot import PARAMETER_SERVER_HOT
from reconcilers.roles.progress import TF_CONFIG_KEPT
from reconcilers.runtime.acts import Event
from reconcilers.scale.plan import intent_of
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.scaled import phase_while_scaling, with_scaled
from reconcilers.scale.uptake import Uptake, in_words
from reconcilers.shards.job_shards import with_end
from reconcilers.world.decision import blaming
from reconcilers.world.rendezvous import Decision, at_the_end, dissolve

TOO_LATE = (
    "the job had {phase} before this edit, which therefore has no effect, unless it was of cleanPodPolicy or "
    "ttlSecondsAfterFinished. To train again, delete the job and create it anew"
)


@dataclass(frozen=True)
class Outcome:
    """The result of one look, but for the account of the job's time."""

    status: ElasticJobStatus
    events: tuple[Event, ...] = ()
    standing_by: frozenset[int] = frozenset()
    """Workers that are ready beside the world."""
    checking: bool = False
    """A check of the job's nodes goes on."""
    broken_at: datetime | None = None
    """When the world failed, if it is given up now because it did."""


@dataclass(frozen=True)
class Training:
    """What the policies say of a job that goes on."""

    world: Rendezvous
    """To be published."""
    left_out: frozenset[int]
    """Workers that the world does without, though they are wanted."""
    failures: Assessment
    exhausted_workers: Mapping[str, str]
    """Workers that get no further Pod, by uid, with the reason."""
    fresh: Freshness
    """Workers whose Pods are outdated."""
    scale_requested: bool
    """Something was asked of the job's scale just now."""
    finding: Finding | None
    """The finding of the checks of its nodes."""
    active_check: NodeCheck | None
    suspected_at: datetime | None
    standing_by: frozenset[int]
    cluster: ClusterStatus | None = None
    """To be published in the world's stead."""
    neighbours: Sequence[Neighbour] = ()


def progress(job: ElasticJob, workers: Workers, training: Training, now: datetime) -> Outcome:
    """Returns the outcome of a job that goes on."""
    world, failures = training.world, training.failures
    phase = job_status.phase_of(job, workers, world)
    conditions = job_status.progress_conditions(job, workers, phase, world, now, training.neighbours)
    conditions = with_scaled(
        conditions,
        job,
        workers,
        world,
        training.left_out,
        training.fresh,
        now,
        anew=training.scale_requested,
        exhausted_workers=training.exhausted_workers,
    )
    conditions = job_status.with_given_up(conditions, training.exhausted_workers.values(), now)
    events = [*_of_workers(job, conditions)]
    if job.status.phase is JobPhase.SUSPENDED and _has_begun(job):
        events.append(Event("Normal", "Resumed", "the job is resumed: its Pods are being created"))
    conditions, found = _with_finding(job, conditions, training.finding, now)
    status = _status(
        job,
        workers,
        standing=len(training.standing_by),
        phase=phase_while_scaling(phase, conditions),
        conditions=conditions,
        rendezvous=None if in_cluster(job) else world,
        cluster=training.cluster,
        active_check=training.active_check.metadata.name if training.active_check else None,
        suspected_at=training.suspected_at,
        start_time=job.status.start_time or now,
        restarts=failures.restarts,
        failure_budget=failures.budget,
        last_failure=failures.last_failure,
    )
    checking = training.active_check is not None
    return Outcome(status, (*events, *found), training.standing_by, checking)


def _has_begun(job: ElasticJob) -> bool:
    """Whether it had a world before it was suspended: else it begins now, and does not go on."""
    return job.status.rendezvous is not None and job.status.rendezvous.round > 0


def suspended(job: ElasticJob, workers: Workers, now: datetime) -> Outcome:
    """Returns the outcome of a suspended job, or one whose Pods from before are still being replaced."""
    phase = JobPhase.SUSPENDED
    world = dissolve(job.status.rendezvous or Rendezvous(), "the job is suspended")
    events = []
    if job.status.phase not in (phase, None):  # one that begins so has no Pods
        events.append(Event("Normal", "Suspended", "the job is suspended: its Pods are being deleted"))
    conditions = job_status.progress_conditions(job, workers, phase, world, now)
    conditions, found = _with_finding(job, conditions, interrupted(conditions), now)
    status = _status(
        job,
        workers,
        phase=phase,
        conditions=conditions,
        rendezvous=None if in_cluster(job) else world,
        active_check=None,
        start_time=None,
    )
    return Outcome(status, (*events, *found))


def failed(job: ElasticJob, workers: Workers, failures: Assessment, now: datetime) -> Outcome:
    """Returns the outcome of a job that failed by what happened to its workers."""
    ending = failures.ending
    assert ending is not None
    outcome = finished(
        _with_blame(job, failures.incident),
        workers,
        JobPhase.FAILED,
        ending.reason,
        ending.message,
        now,
        restarts=failures.restarts,
        failure_budget=failures.budget,
        last_failure=ending.failure or failures.last_failure,
    )
    return replace(outcome, events=(*_of_culprit(failures.incident), *outcome.events))


def _with_blame(job: ElasticJob, incident: Incident | None) -> ElasticJob:
    """The job, whose broken world says who was first."""
    world = job.status.rendezvous
    if incident is None or world is None:
        return job
    return job.with_status(rendezvous=blaming(world, blame_of(incident)))


def finished(
    job: ElasticJob,
    workers: Workers,
    phase: JobPhase,
    reason: str,
    message: str,
    now: datetime,
    **more: Any,
) -> Outcome:
    conditions = with_loss(job.status.conditions, job, workers, now)
    told = events_of_loss(job.status.conditions, conditions)
    world = at_the_end(job.status.rendezvous) if job.status.rendezvous else None
    if world is not None:
        conditions = job_status.with_reason_of_world(conditions, world)
    conditions = with_end(job_status.final_conditions(conditions, phase, reason, message, now), now)
    conditions, found = _with_finding(job, conditions, interrupted(conditions), now)
    update = {"last_failure": last_failure(job, workers), "rendezvous": world} | more
    status = _status(
        job,
        workers,
        phase=phase,
        conditions=conditions,
        active_check=None,
        completion_time=now,
        scale_plan=None,
        **update,
    )
    end = Event("Normal" if phase is JobPhase.SUCCEEDED else "Warning", reason, message)
    return Outcome(status, (*told, end, *found))


def over(job: ElasticJob, workers: Workers, now: datetime) -> Outcome:
    """Returns the outcome of a finished job: its counts follow its Pods; an earlier dlr may leave a world.

    The write of the end knew the generation of its time: a later one is an edit that came too late.
    """
    phase, known = job.status.phase, job.status.observed_generation
    assert phase is not None
    status = _status(job, workers, conditions=job_status.without_present(job.status.conditions, phase, now))
    if known is None or known >= job.metadata.generation:
        return Outcome(status)
    message = TOO_LATE.format(phase=phase.value.lower())
    return Outcome(status, (Event("Warning", "EditWithoutEffect", message),))


def _status(job: ElasticJob, workers: Workers, standing: int = 0, **update: Any) -> ElasticJobStatus:
    """What every status says, whatever the phase; and the rest."""
    selector = {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}
    common = {
        "replica_statuses": job_status.replica_statuses(job, workers, standing),
        "replicas": job_status.worker_pods(job, workers),
        "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
    }
    return job.status.model_copy(update=common | update)


# --- Events -----------------------------------------------------------------------------------------------


def of_world(
    published: Rendezvous,
    decision: Decision,
    failures: Assessment,
    workers: Workers,
    *,
    was_counted: bool,
) -> Iterator[Event]:
    """That the world broke, changed or formed.

    Args:
        was_counted: a failure of the published round was blamed before, so its break has been told.
    """
    new, incident = decision.rendezvous, failures.incident
    yield from _of_culprit(incident)
    if (loss := failures.late_loss) is not None:
        message = f"round {loss.round}: {loss.line}; what {loss.blamed} told follows from that"
        yield Event("Warning", "WorldBroken", message)
    if decision.failed and incident is not None and incident.exit_class is ExitClass.DAMAGED_CHECKPOINT:
        yield Event("Warning", "CheckpointDamaged", in_one_line(incident.failure))
    was_asked = published.hang_since is not None and not was_counted
    if new.hang_since is None and (decision.failed or was_asked):
        why = incident_line(incident) or new.why
        yield Event("Warning", "WorldBroken", f"round {published.round}: {why}")
    elif decision.breaks and not decision.failed:
        yield Event("Normal", "WorldChanged", f"round {published.round}: {new.why}")
    if new.phase is RendezvousPhase.FORMED and new.round != published.round:
        yield Event(
            "Normal",
            "WorldFormed",
            f"round {new.round}: {counted(len(new.members), 'worker')}, "
            f"{counted(new.world_size, 'process', 'processes')}, "
            f"rank 0 is worker {new.members[0]} at {names.with_port(new.master_address, new.master_port)}"
            f"{_stepped_in(workers, new.members)}",
        )


def _stepped_in(workers: Workers, members: Collection[int]) -> str:
    """Names the members that stood by until now."""
    stood_by = {w.spec.index for w in workers.exceptional if w.status.standby}.intersection(members)
    return f"; stood by before: {named(stood_by)}" if stood_by else ""


def incident_line(incident: Incident | None) -> str:
    """The culprit in one line, with the class and what a rule says to it."""
    if incident is None:
        return ""
    follows = ", follows from another's end" if incident.follows else ""
    by_rule = f", {incident.action} by failurePolicy" if incident.action else ""
    return f"{in_one_line(incident.failure)} ({incident.exit_class}{follows}{by_rule})"


def _of_culprit(incident: Incident | None) -> Iterator[Event]:
    if incident is not None and incident.instead_of is not None:
        blamed = incident.instead_of
        message = f"round {blamed.round}: {incident_line(incident)} was first, and not {blamed.worker}"
        yield Event("Warning", "WorldBroken", message)


def of_scale(uptake: Uptake) -> Iterator[Event]:
    """Yields Events for a count or plan that has just become desired state; none for probes."""
    if uptake.is_growth:
        return
    scaling, before = uptake.job.status.scaling, uptake.count_changed_from
    if scaling is not None and before is not None:
        message = f"from {before} to {counted(scaling.replicas, 'worker')}, by {scaling.by}"
        yield Event("Normal", "ScaleRequested", message)
    plan = uptake.plan
    if plan is not None:
        intent = replace(intent_of(plan, uptake.job), replicas=plan.status.replicas)
        yield Event("Normal", "ScalePlanTaken", f"ScalePlan {plan.metadata.name}: {in_words(intent)}")


def of_moves(done: Sequence[Migration]) -> Iterator[Event]:
    for move in done:
        message = f"{move.type} {move.target} has taken the place of {move.source}"
        yield Event("Normal", "WorkerMoved", message)


def _of_workers(job: ElasticJob, conditions: Sequence[Condition]) -> Iterator[Event]:
    yield from events_of_loss(job.status.conditions, conditions)
    yield from events_of_saving(job.status.conditions, conditions)
    yield from events_of_slow(job.status.conditions, conditions)
    yield from events_of_silent(job.status.conditions, conditions)
    before = {c.type: c for c in job.status.conditions}
    for condition in conditions:
        if is_same(before.get(condition.type), condition):
            continue
        is_true, is_false = (
            condition.status is ConditionStatus.TRUE,
            condition.status is ConditionStatus.FALSE,
        )
        if condition.type in (WORKERS_SCHEDULED, job_status.WORKERS_STARTED) and is_false:
            yield Event("Warning", condition.reason, condition.message)
        if condition.type == job_status.RUNNING and condition.reason == job_status.NO_REPLICAS:
            yield Event("Normal", job_status.NO_REPLICAS, condition.message)
        if condition.type == job_status.WORKERS_GIVEN_UP and is_true:
            yield Event("Warning", "WorkersGivenUp", condition.message)
        if condition.type == STEPS_KNOWN and condition.reason == NO_STEPS:
            yield Event("Warning", NO_STEPS, condition.message)
        if condition.type in (job_status.MASTER_IGNORED, TF_CONFIG_KEPT):
            yield Event("Normal", condition.type, condition.message)
        if condition.type == PARAMETER_SERVER_HOT and is_true:
            yield Event("Warning", PARAMETER_SERVER_HOT, condition.message)


def _with_finding(
    job: ElasticJob, conditions: list[Condition], finding: Finding | None, now: datetime
) -> tuple[list[Condition], tuple[Event, ...]]:
    """The conditions with what is known of the nodes; an Event when a check begins or has ended."""
    if finding is None:
        return conditions, ()
    conditions = with_condition(
        conditions, NODES_CHECKED, finding.status, finding.reason, finding.message, now, finding.data
    )
    old, new = (condition_of(known, NODES_CHECKED) for known in (job.status.conditions, conditions))
    if is_same(old, new) or not finding.of_a_check:
        return conditions, ()
    type_: EventType = "Normal" if finding.reason in QUIET else "Warning"
    return conditions, (Event(type_, finding.reason, finding.message),)
