"""Judges conditions of a job alone, as a look does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Condition
from crds.phases import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.facts import Facts
from reconcilers.conditions.table import SIZES, TABLE, events, judged
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from tests.reconcilers.build import NOW


def judge(
    of: ElasticJob,
    *types: str,
    workers: Sequence[ElasticWorker] = (),
    phase: JobPhase = JobPhase.PENDING,
    world: Rendezvous | None = None,
    now: datetime = NOW,
    **facts: Any,
) -> tuple[ElasticJob, list[Event]]:
    """The job with these conditions, or all that follow from its workers; and the Events of their change."""
    kinds = [kind for kind in (*TABLE, *SIZES) if kind.type in types] if types else TABLE
    seen = Facts(of, Workers(workers), phase, world or Rendezvous(), now, **facts)
    before = of.status.conditions
    after = judged(kinds, before, seen)
    return with_status(of, conditions=after), list(events(before, after))


def conditions(of: ElasticJob) -> dict[str, Condition]:
    return {condition.type: condition for condition in of.status.conditions}


def with_status(of: ElasticJob, **update: Any) -> ElasticJob:
    return of.model_copy(update={"status": of.status.model_copy(update=update)})
