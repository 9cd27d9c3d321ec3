"""Reading what concerns a job's scale: its ScalePlans, and which of its slots are vacant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.cache import Cache
from controller.resources import PODS, Object
from controller.slices import Slices, computed
from crds import names
from crds.elasticjob import ElasticJob
from crds.scaleplan import ScalePlan
from reconcilers.observed.ownership import BY_JOB, number_label
from reconcilers.observed.slots import Slot, vacant_slots
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.scale.uptake import Vacant

BY_OWNER_JOB = "owner-job"


class JobPlans:
    def __init__(self, cache: Cache) -> None:
        self._plans = cache.store(SCALEPLANS)
        self._pods = cache.store(PODS)
        self._workers = cache.store(ELASTICWORKERS)
        self._parse = cache.models(SCALEPLANS, ScalePlan)

    def unjudged(self, namespace: str | None, name: str, job_uid: str | None) -> list[ScalePlan]:
        """The plans for a job that have no verdict yet; without the job, those that no earlier one owns."""
        found = self._plans.by_index(BY_OWNER_JOB, f"{namespace}/{name}")
        return list(self._parse.readable(r for r in found if not is_judged(r) and is_for(r, job_uid)))

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


def is_judged(plan: Object) -> bool:
    return (plan.get("status") or {}).get("phase") is not None


def is_for(plan: Object, job_uid: str | None) -> bool:
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
