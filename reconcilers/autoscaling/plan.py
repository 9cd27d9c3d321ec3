"""What autoscaling makes of one look at a job, as one pure function."""

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
"""Time until the next look for what another job came to, which wakes nobody."""


@dataclass(frozen=True)
class SizeSeen:
    """What is seen of a job."""

    job: ElasticJob
    raw: Object
    """The job as it is stored."""
    workers: Workers
    history: Sequence[ElasticJob] | None = None
    """The namespace's finished jobs, where this one is to begin as such ended; else None."""
    nodes: Collection[Mapping[str, Any]] = ()
    """All Nodes, likewise."""
    refused: RefusedRequest | None = None
    """The last request for this job that was refused, for as long as that counts."""


@dataclass(frozen=True)
class SizePlan:
    """What is to be written: the status, then the request."""

    status_patch: Object = field(default_factory=dict)
    event: Event | None = None
    """Event of the status."""
    write: ScaleWrite | None = None
    """The request, which is written after the status."""
    look_again_seconds: float | None = None


def plan_autoscaling(look: SizeSeen, now: datetime) -> SizePlan:
    """Plan what autoscaling writes into a job: nothing over a request that the job has not merged yet."""
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
