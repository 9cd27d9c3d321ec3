"""What to do about a ScalePlan now: its life from Created to its end. Pure.

Each step is one write, and the next is decided from what is there then, by whoever is there then: a
controller that is killed between any two leaves nothing half done. Counts are written to the job's spec
once: the plan says first (`jobGeneration`, `replicas`) what it will write, and to which generation. If that
has passed and the spec does not say so, somebody has changed the job since, and the newer intent stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Condition, ConditionStatus
from crds.scaleplan import ScalePlan, ScalePlanPhase, ScalePlanStatus
from reconcilers.observed.conditions import SCALED, WORKERS_SCHEDULED, is_true, observed_at, with_condition
from reconcilers.scale.plan import Refusal, impossible, intent_of, refusal
from reconcilers.scale.uptake import age

PROGRESSING = "Progressing"


@dataclass(frozen=True)
class Situation:
    """What there is."""

    plan: ScalePlan
    job: ElasticJob | None
    siblings: Sequence[ScalePlan] = ()
    """The job's other plans."""
    workers: Sequence[ElasticWorker] = ()
    nodes: Collection[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Step:
    """One write: the plan's status, or the counts of the job."""

    status: ScalePlanStatus | None = None
    counts: Mapping[str, int] | None = None


def next_step(seen: Situation, now: datetime) -> Step:
    """The next write for a plan that has not ended; of a status that is the same as before, none."""
    plan, job = seen.plan, seen.job
    if job is not None and _is_done(plan, job):
        return _end(plan, ScalePlanPhase.SUCCEEDED, "AsAsked", "the job is as the plan asked", now)
    refused = impossible(plan, job)
    if refused is not None or job is None:
        return _fail(plan, refused or Refusal("JobNotFound", "there is no job"), now)
    newer = _superseding(plan, seen.siblings)
    if newer is not None and plan.status.phase is not None:
        message = f"the ScalePlan {newer.metadata.name} is newer"
        return _end(plan, ScalePlanPhase.SUPERSEDED, "NewerPlan", message, now)
    if plan.status.phase is ScalePlanPhase.SCALING:
        return _scale(plan, job, now)
    return _begin(seen, job, now)


def refused_by_server(plan: ScalePlan, error: str, now: datetime) -> Step:
    """The API server does not take the counts."""
    return _fail(plan, Refusal("Refused", f"the job's counts were refused: {error}"), now)


def _begin(seen: Situation, job: ElasticJob, now: datetime) -> Step:
    """To Created, if it can be carried out; then it waits until the job names it."""
    plan = seen.plan
    named = job.status.scale_plan == plan.metadata.name
    edited = plan.status.observed_generation != plan.metadata.generation
    if plan.status.phase is None or edited or named:
        refused = refusal(plan, job, seen.workers, seen.nodes)
        if refused is not None:
            return _fail(plan, refused, now)
    if plan.status.phase is None or edited:
        return _on(plan, ScalePlanPhase.CREATED, "Accepted", "it can be carried out", now)
    if not named:
        message = f"the job {job.metadata.name} has not begun with it yet"
        return _on(plan, ScalePlanPhase.PENDING, "WaitingForJob", message, now)
    counts = dict(intent_of(plan, job).replicas)
    decided = {"replicas": counts, "job_generation": job.metadata.generation}
    return _on(plan, ScalePlanPhase.SCALING, "Scaling", "begins", now, **decided)


def _scale(plan: ScalePlan, job: ElasticJob, now: datetime) -> Step:
    """The counts, then what the job makes of it."""
    if plan.status.observed_generation != plan.metadata.generation:
        message = "spec: the plan was changed while it was carried out; make another plan"
        return _fail(plan, Refusal("PlanChanged", message), now)
    specs = job.spec.replica_specs
    differing = {t: n for t, n in plan.status.replicas.items() if t not in specs or specs[t].replicas != n}
    taken = job.status.scale_plan_uid == plan.metadata.uid
    if not differing:
        message = _progress(job) if taken else f"the job {job.metadata.name} has not taken it over yet"
        return _on(plan, ScalePlanPhase.SCALING, "Scaling", message, now)
    if not taken and job.metadata.generation == plan.status.job_generation:
        return Step(counts=differing)
    return _end(plan, ScalePlanPhase.SUPERSEDED, "NewerIntent", _newer_intent(plan, job, differing), now)


def _newer_intent(plan: ScalePlan, job: ElasticJob, differing: Iterable[str]) -> str:
    type_ = min(differing)
    if type_ not in job.spec.replica_specs:
        return f"spec.replicaSpecs[{type_}] was removed from the job after this plan"
    count, known = job.spec.replica_specs[type_].replicas, job.status.scaling
    by = f" by {known.by}" if known is not None and known.replicas == count else ""
    return (
        f"the job's spec was changed{by} after this plan: spec.replicaSpecs[{type_}].replicas is {count}, "
        f"and the plan's count was {plan.status.replicas[type_]}"
    )


def _is_done(plan: ScalePlan, job: ElasticJob) -> bool:
    specs = job.spec.replica_specs
    return (
        plan.status.phase is ScalePlanPhase.SCALING
        and job.status.scale_plan_uid == plan.metadata.uid
        and job.status.observed_generation == job.metadata.generation
        and all(t in specs and specs[t].replicas == n for t, n in plan.status.replicas.items())
        and is_true(job.status.conditions, SCALED)
    )


def _progress(job: ElasticJob) -> str:
    """What the job has yet to do, and what it lacks for it."""
    conditions = {c.type: c for c in job.status.conditions}
    said = [conditions[SCALED].message] if SCALED in conditions else []
    scheduled = conditions.get(WORKERS_SCHEDULED)
    if scheduled is not None and scheduled.status is ConditionStatus.FALSE:
        said.append(scheduled.message)
    return "; ".join(text for text in said if text)


def _superseding(plan: ScalePlan, siblings: Iterable[ScalePlan]) -> ScalePlan | None:
    """The newest plan that came after this one and was not refused."""
    looked_at = (s for s in siblings if s.status.phase not in (None, ScalePlanPhase.FAILED))
    return max((s for s in looked_at if age(s) > age(plan)), key=age, default=None)


def _on(
    plan: ScalePlan, phase: ScalePlanPhase, reason: str, message: str, now: datetime, **more: Any
) -> Step:
    conditions = with_condition(
        plan.status.conditions, PROGRESSING, ConditionStatus.TRUE, reason, message, now
    )
    return _changed(plan, conditions, {"phase": phase, "create_time": plan.status.create_time or now} | more)


def _fail(plan: ScalePlan, refused: Refusal, now: datetime) -> Step:
    return _end(plan, ScalePlanPhase.FAILED, refused.reason, refused.message, now)


def _end(plan: ScalePlan, phase: ScalePlanPhase, reason: str, message: str, now: datetime) -> Step:
    conditions = with_condition(
        plan.status.conditions, PROGRESSING, ConditionStatus.FALSE, phase.value, "", now
    )
    conditions = with_condition(conditions, phase.value, ConditionStatus.TRUE, reason, message, now)
    times = {"create_time": plan.status.create_time or now, "finish_time": now}
    return _changed(plan, conditions, {"phase": phase} | times)


def _changed(plan: ScalePlan, conditions: list[Condition], update: dict[str, Any]) -> Step:
    begun = plan.status.phase is ScalePlanPhase.SCALING
    generation = (plan.status.observed_generation if begun else None) or plan.metadata.generation
    status = observed_at(plan.status.model_copy(update=update | {"conditions": conditions}), generation)
    return Step(status if status != plan.status else None)
