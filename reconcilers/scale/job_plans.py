"""Reading what concerns a job's scale: its ScalePlans, and which of its slots are vacant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import NotFound
from controller.resources import PODS, Object
from controller.slices import Slices, computed
from crds import names
from crds.elasticjob import ElasticJob
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.observed.ownership import BY_JOB, number_label
from reconcilers.observed.slots import Slot, vacant_slots
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.scale.auto_plans import is_ours
from reconcilers.scale.uptake import Plans, Vacant, counts_moved, newest

BY_OWNER_JOB = "owner-job"
HESITANT = (ScalePlanPhase.CREATED, ScalePlanPhase.PENDING)
"""Phases of a plan that has not begun, as far as is known."""


class JobPlans:
    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._plans = cache.store(SCALEPLANS)
        self._pods = cache.store(PODS)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse = cache.models(SCALEPLANS, ScalePlan)

    async def read(self, job: ElasticJob) -> Plans:
        """Reads plans from the cache; the one that may have changed the count, from the API server."""
        metadata = job.metadata
        found = self._plans.by_index(BY_OWNER_JOB, f"{metadata.namespace}/{metadata.name}")
        there = [raw for raw in found if is_for(raw, metadata.uid)]
        plans = {plan.metadata.name: plan for plan in self._parse.readable(there)}
        named = plans.get(job.status.scale_plan or "")
        if named is not None and named.status.phase in HESITANT and counts_moved(job):
            fresh = await self._from_server(named)
            plans |= {named.metadata.name: fresh}
            named = fresh
        spent = (plan for plan in plans.values() if is_ours(plan) and plan.status.finish_time is not None)
        return Plans(newest(plans.values()), named, tuple(plan for plan in spent if plan is not named))

    async def _from_server(self, plan: ScalePlan) -> ScalePlan:
        try:
            raw = await self._client.get(SCALEPLANS, plan.metadata.name, plan.metadata.namespace)
        except NotFound:
            return plan
        return self._parse.parse_or_none(raw) or plan

    async def vacant(self, job: ElasticJob) -> Vacant:
        """The job's retired slots of which nothing is left, and what is being deleted is still left."""
        if not job.status.retired:
            return {}
        key = f"{job.metadata.namespace}/{job.metadata.name}"
        there, slices = set[Slot](), Slices()
        for raw in self._workers.by_index(BY_JOB, key):
            there.add((raw["spec"]["type"], raw["spec"]["index"]))
            await slices.pause()
        for raw in self._pods.by_index(BY_JOB, key):
            labels = raw["metadata"]["labels"]
            if (index := number_label(raw, names.LABEL_INDEX)) is not None:
                there.add((labels[names.LABEL_TYPE], index))
            await slices.pause()
        return await computed(len(there), vacant_slots, job, there)


def is_for(plan: Object, job_uid: str) -> bool:
    """Whether it is for this job: neither on its way out, nor owned by an earlier one of the same name."""
    metadata = plan["metadata"]
    owners = {o["uid"] for o in metadata.get("ownerReferences") or () if o["kind"] == ELASTICJOBS.kind}
    return not metadata.get("deletionTimestamp") and (not owners or job_uid in owners)


def pods_job(pod: dict[str, Any]) -> Iterable[str]:
    """Index function: the job that a worker's Pod is of."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    ours = {names.LABEL_JOB, names.LABEL_TYPE, names.LABEL_INDEX} <= labels.keys()
    return [f"{metadata['namespace']}/{labels[names.LABEL_JOB]}"] if ours else []


def owner_job(plan: dict[str, Any]) -> Iterable[str]:
    """Index function: the job that a ScalePlan is for."""
    return [f"{plan['metadata']['namespace']}/{plan['spec']['ownerJob']}"]
