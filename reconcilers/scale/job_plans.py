"""Reading what concerns a job's scale, its ScalePlans and its Pods: the rim of `job_scale` and `rolling`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import NotFound
from controller.resources import PODS, SCALEPLANS
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.scale.rolling import Freshness, freshness
from reconcilers.scale.uptake import Plans, counts_moved, newest

BY_OWNER_JOB = "owner-job"
HESITANT = (ScalePlanPhase.CREATED, ScalePlanPhase.PENDING)
"""Phases of a plan that has not begun, as far as is known."""


class JobPlans:
    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._plans = cache.store(SCALEPLANS)
        self._pods = cache.store(PODS)
        self._parse = cache.models(SCALEPLANS, ScalePlan)

    async def read(self, job: ElasticJob) -> Plans:
        """From the cache; but the plan that may have changed the count which is seen, from the server."""
        metadata = job.metadata
        found = self._plans.by_index(BY_OWNER_JOB, f"{metadata.namespace}/{metadata.name}")
        there = [raw for raw in found if not raw["metadata"].get("deletionTimestamp")]
        plans = {raw["metadata"]["name"]: self._parse.parse(raw) for raw in there}
        named = plans.get(job.status.scale_plan or "")
        if named is not None and named.status.phase in HESITANT and counts_moved(job):
            fresh = await self._from_server(named)
            plans |= {named.metadata.name: fresh}
            named = fresh
        return Plans(newest(plans.values()), named)

    async def _from_server(self, plan: ScalePlan) -> ScalePlan:
        try:
            raw = await self._client.get(SCALEPLANS, plan.metadata.name, plan.metadata.namespace)
        except NotFound:
            return plan
        return ScalePlan.model_validate(raw)

    def freshness(self, job: ElasticJob, workers: Sequence[ElasticWorker]) -> Freshness:
        """Of the workers' Pods, as the cache has them."""
        names = (worker.status.pod_name for worker in workers)
        pods = {name: self._pods.get(job.metadata.namespace, name) for name in names if name}
        return freshness(job, workers, {name: pod for name, pod in pods.items() if pod is not None})


def owner_job(plan: dict[str, Any]) -> Iterable[str]:
    """Index function: the job that a ScalePlan is for."""
    return [f"{plan['metadata']['namespace']}/{plan['spec']['ownerJob']}"]
