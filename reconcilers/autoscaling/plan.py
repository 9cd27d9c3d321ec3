"""The plan of autoscaling for one look at a job, as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controller.resources import Object
from crds.elasticjob import ElasticJob
from crds.job_status import ProfileUse
from reconcilers.autoscaling import growth, profile, usage
from reconcilers.observed.status_patch import validated_patch
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.scale.permission import own_write, refusal_of
from reconcilers.scale.request import Origin, RefusedRequest, ScaleWrite, is_merged

FIELDS = ("growth", "profile", "usage")
"""Fields of a job's status that are written here, and nowhere else."""
LOOK_SECONDS = 0.5
"""Time between two looks while the usage of a finished job is missing, which triggers none."""


@dataclass(frozen=True)
class SizeSeen:
    """The input of a plan."""

    job: ElasticJob
    raw: Object
    """The stored job."""
    workers: Workers
    history: Sequence[ElasticJob] | None = None
    """The namespace's finished jobs, if this job is new and has a profile; else None."""
    nodes: Collection[Mapping[str, Any]] = ()
    """All Nodes, if there is a `history`."""
    refused: RefusedRequest | None = None
    """The job's last refused request, as long as the refusal counts."""


@dataclass(frozen=True)
class SizePlan:
    """The writes of one look: the status, then the request."""

    status_patch: Object = field(default_factory=dict)
    event: Event | None = None
    """Event of the status."""
    write: ScaleWrite | None = None
    """The request, which is written after the status."""
    look_again_seconds: float | None = None


def plan_autoscaling(look: SizeSeen, now: datetime) -> SizePlan:
    """Plan the writes of autoscaling into a job; none over a request that the job has not merged yet."""
    job, plan = look.job, SizePlan()
    if usage.is_due(job):
        job = job.having(usage=usage.usage_of(job, look.workers))
    if look.history is not None and is_merged(job):
        job, plan = _begin(look, job, look.history)
    elif growth.concerns(job) and is_merged(job):
        known, write, wait = growth.grow(job, look.workers, look.refused, now)
        job, plan = job.having(growth=known), SizePlan(write=write, look_again_seconds=wait)
    patch = validated_patch(look.raw.get("status") or {}, job.status) if job is not look.job else {}
    return replace(plan, status_patch={name: patch[name] for name in FIELDS if name in patch})


def _begin(look: SizeSeen, job: ElasticJob, history: Sequence[ElasticJob]) -> tuple[ElasticJob, SizePlan]:
    managed_fields = look.raw["metadata"].get("managedFields") or ()
    found = profile.begin(job, history, refusal_of(look.refused, Origin.PROFILE), managed_fields)
    if isinstance(found, ProfileUse):
        return job.having(profile=found), SizePlan(event=profile.event_of(found))
    if found is None:
        return job, SizePlan(look_again_seconds=LOOK_SECONDS)
    write, wait = own_write(job, found, look.refused, look.nodes)
    return job, SizePlan(write=write, look_again_seconds=wait)
