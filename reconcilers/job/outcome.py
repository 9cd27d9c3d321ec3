"""The status that a look at a job ends with, and the Events that tell of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from crds import names
from crds.elasticjob import ElasticJobStatus, JobPhase, Migration, Rendezvous, RendezvousPhase
from crds.model import Condition
from reconcilers.conditions import with_condition
from reconcilers.failure.incidents import Incident, in_one_line
from reconcilers.failure.policy import Assessment, Ending
from reconcilers.job import status as job_status
from reconcilers.job.turn import Turn
from reconcilers.nodecheck.job_checks import NODES_CHECKED, QUIET, Finding, interrupted, named
from reconcilers.scale.plan import intent_of
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.scaled import phase_while_scaling, with_scaled
from reconcilers.scale.uptake import Uptake, in_words
from reconcilers.world.rendezvous import Decision, dissolve


def progress(
    turn: Turn, rendezvous: Rendezvous, finding: Finding | None, without: Collection[int], fresh: Freshness
) -> ElasticJobStatus:
    """Of a job that goes on. The world does without some workers, and some have outdated Pods."""
    job = turn.job
    phase = job_status.phase_of(job, turn.workers, rendezvous)
    conditions = job_status.progress_conditions(job, turn.workers, phase, rendezvous, turn.now)
    conditions = with_scaled(
        conditions, job, turn.workers, rendezvous, without, fresh, turn.now, anew=turn.asked_anew
    )
    conditions = job_status.with_given_up(conditions, turn.given_up.values(), turn.now)
    _announce_workers(turn, conditions)
    if job.status.phase is JobPhase.SUSPENDED:
        turn.event("Normal", "Resumed", "the job is to run again: its Pods are made")
    return common(turn).model_copy(
        update={
            "phase": phase_while_scaling(phase, conditions),
            "conditions": _with_finding(turn, conditions, finding),
            "rendezvous": rendezvous,
            "start_time": job.status.start_time or turn.now,
            "last_failure": job_status.last_failure(job, turn.workers),
        }
    )


def suspended(turn: Turn) -> ElasticJobStatus:
    job, phase = turn.job, JobPhase.SUSPENDED
    rendezvous = dissolve(turn.published, "the job is suspended")
    if job.status.phase is not phase:
        turn.event("Normal", "Suspended", "the job is suspended: its Pods are deleted")
    conditions = job_status.progress_conditions(job, turn.workers, phase, rendezvous, turn.now)
    return common(turn).model_copy(
        update={
            "phase": phase,
            "conditions": _with_finding(turn, conditions, interrupted(conditions)),
            "rendezvous": rendezvous,
            "start_time": None,
        }
    )


def failed(turn: Turn, failures: Assessment, ending: Ending) -> ElasticJobStatus:
    """Of a job that failed by what happened to its workers."""
    _announce_culprit(turn, failures.incident)
    status = finished(turn, JobPhase.FAILED, ending.reason, ending.message)
    return status.model_copy(
        update={
            "restarts": failures.restarts,
            "failure_budget": failures.budget,
            "last_failure": ending.failure or failures.last_failure,
        }
    )


def finished(turn: Turn, phase: JobPhase, reason: str, message: str) -> ElasticJobStatus:
    turn.event("Normal" if phase is JobPhase.SUCCEEDED else "Warning", reason, message)
    conditions = job_status.final_conditions(turn.job.status.conditions, phase, reason, message, turn.now)
    turn.active_check = None
    return common(turn).model_copy(
        update={
            "phase": phase,
            "conditions": _with_finding(turn, conditions, interrupted(conditions)),
            "completion_time": turn.now,
            "scale_plan": None,
            "last_failure": job_status.last_failure(turn.job, turn.workers),
        }
    )


def common(turn: Turn) -> ElasticJobStatus:
    """What every status says, whatever the phase."""
    job = turn.job
    selector = {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}
    return job.status.model_copy(
        update={
            "observed_generation": job.metadata.generation,
            "replica_statuses": job_status.replica_statuses(job, turn.workers, len(turn.standing_by)),
            "replicas": job_status.worker_pods(job, turn.workers),
            "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
            "active_check": turn.active_check.metadata.name if turn.active_check else None,
            "suspected_at": turn.suspected_at or job.status.suspected_at,
        }
    )


def announce_world(turn: Turn, decision: Decision, incident: Incident | None) -> None:
    published, new = turn.published, decision.rendezvous
    _announce_culprit(turn, incident)
    if decision.broken:
        why = incident_line(incident) or new.reason
        turn.event("Warning", "WorldBroken", f"round {published.round}: {why}")
    elif decision.breaks:
        turn.event("Normal", "WorldChanged", f"round {published.round}: {new.reason}")
    if new.phase is RendezvousPhase.FORMED and new.round != published.round:
        stepped_in = _stepped_in(turn, new)
        turn.event(
            "Normal",
            "WorldFormed",
            f"round {new.round}: {len(new.members)} workers, {new.world_size} processes, "
            f"rank 0 is worker {new.members[0]} at {new.master_address}:{new.master_port}{stepped_in}",
        )


def _stepped_in(turn: Turn, world: Rendezvous) -> str:
    """Who stood by until now, in words."""
    stood_by = {w.spec.index for w in turn.workers if w.status.standby}.intersection(world.members)
    return f"; stood by before: {named(stood_by)}" if stood_by else ""


def incident_line(incident: Incident | None) -> str:
    """The culprit in one line, with the class and what a rule says to it."""
    if incident is None:
        return ""
    follows = ", follows from another's end" if incident.follows else ""
    by_rule = f", {incident.action} by failurePolicy" if incident.action else ""
    return f"{in_one_line(incident.failure)} ({incident.exit_class}{follows}{by_rule})"


def _announce_culprit(turn: Turn, incident: Incident | None) -> None:
    if incident is not None and incident.instead_of is not None:
        blamed = incident.instead_of
        message = f"round {blamed.round}: {incident_line(incident)} was first, and not {blamed.worker}"
        turn.event("Warning", "WorldBroken", message)


def announce_scale(turn: Turn, uptake: Uptake) -> None:
    """Tell of a count or a plan that has just become desired state."""
    scaling, before = uptake.job.status.scaling, uptake.count_changed_from
    if scaling is not None and before is not None:
        message = f"from {before} to {scaling.replicas} workers, by {scaling.by}"
        turn.event("Normal", "ScaleRequested", message)
    plan = uptake.plan
    if plan is not None:
        intent = replace(intent_of(plan, uptake.job), replicas=plan.status.replicas)
        turn.event("Normal", "ScalePlanTaken", f"ScalePlan {plan.metadata.name}: {in_words(intent)}")


def announce_moves(turn: Turn, done: Sequence[Migration]) -> None:
    for move in done:
        message = f"{move.type} {move.target} has taken the place of {move.source}"
        turn.event("Normal", "WorkerMoved", message)


def _announce_workers(turn: Turn, conditions: Sequence[Condition]) -> None:
    before = {c.type: (c.status, c.message) for c in turn.job.status.conditions}
    for condition in conditions:
        unseen = before.get(condition.type) != (condition.status, condition.message)
        if condition.type == job_status.WORKERS_SCHEDULED and condition.message and unseen:
            turn.event("Warning", condition.reason, condition.message)
        if condition.type == job_status.WORKERS_GIVEN_UP and condition.message and unseen:
            turn.event("Warning", "WorkersGivenUp", condition.message)
        if condition.type == job_status.MASTER_IGNORED and unseen:
            turn.event("Normal", job_status.MASTER_IGNORED, condition.message)


def _with_finding(turn: Turn, conditions: list[Condition], finding: Finding | None) -> list[Condition]:
    """The conditions with what is known of the nodes; an Event when a check begins or has ended."""
    if finding is None:
        return conditions
    if finding.differs_from(conditions) and finding.of_a_check:
        turn.event("Normal" if finding.reason in QUIET else "Warning", finding.reason, finding.message)
    return with_condition(
        conditions, NODES_CHECKED, finding.status, finding.reason, finding.message, turn.now
    )
