"""Looks at a job that is stored, and judges its conditions and warnings alone, as a look does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobWarning
from crds.model import Condition
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.table import TABLE, WARNINGS, events, judged, warned
from reconcilers.job.plan import JobPlan
from reconcilers.look import DesiredJob, ObservedJob
from reconcilers.nodecheck.condition import KIND
from reconcilers.nodecheck.job_checks import JobChecks
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW


def judge(
    of: ElasticJob,
    *warnings: str,
    workers: Sequence[ElasticWorker] = (),
    phase: JobPhase = JobPhase.PENDING,
    world: Rendezvous | None = None,
    now: datetime = NOW,
    **more: Any,
) -> tuple[ElasticJob, list[Event]]:
    """The job with these warnings, or else all warnings and conditions; and the Events of their change."""
    observed = {field.name: more.pop(field.name) for field in fields(ObservedJob) if field.name in more}
    seen, table = ObservedJob(of, {}, **observed), TABLE.beside((KIND,))
    look = DesiredJob(seen, of, Workers(workers), now, table=table, phase=phase, rendezvous=world, **more)
    if warnings:
        kinds = [kind for kind in WARNINGS if kind.type in warnings]
        after = with_status(of, warnings=warned(kinds, of.status.warnings, look))
    else:
        found = judged(look)
        after = with_status(of, conditions=found.conditions, warnings=found.warnings)
    return after, list(events(of.status, with_status(after, phase=phase).status, TABLE))


def seen_of(of: ElasticJob, workers: Iterable[ElasticWorker] = (), **more: Any) -> ObservedJob:
    """What a look sees."""
    raw = {"metadata": {"name": of.metadata.name}, "status": of.status.to_wire()}
    return ObservedJob(of, raw, Workers(workers), **({"vetting": JobChecks(), "kinds": (KIND,)} | more))


def after(of: ElasticJob, plan: JobPlan) -> ElasticJob:
    """The job when what the plan says of its status is written."""
    status = merged(of.status.to_wire(), plan.status_patch)
    return of.model_copy(update={"status": type(of.status).model_validate(status)})


def conditions(of: ElasticJob) -> dict[str, Condition]:
    return {condition.type: condition for condition in of.status.conditions}


def warnings(of: ElasticJob) -> dict[str, JobWarning]:
    return {warning.type: warning for warning in of.status.warnings}


def with_status(of: ElasticJob, **update: Any) -> ElasticJob:
    return of.model_copy(update={"status": of.status.model_copy(update=update)})
