"""ScalePlans in the cache, requests written into jobs, verdicts written into ScalePlans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import Conflict, NotFound, Refused
from controller.events import EventRecorder
from controller.resources import PODS, Object
from controller.slices import computed
from controller.store import Memory
from crds import names
from crds.elasticjob import ElasticJob
from crds.scaleplan import ScalePlan
from reconcilers.observed.ownership import BY_JOB, number_label
from reconcilers.observed.slots import Slot, vacant_slots
from reconcilers.runtime.acts import carry_out, tell
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.runtime.refused import is_refusal
from reconcilers.scale.request import REFUSED_SECONDS, RefusedRequest, ScaleWrite, differing
from reconcilers.scale.uptake import Vacant
from reconcilers.scale.verdicts import PlanVerdict, refused_by_server, without_job

BY_OWNER_JOB = "owner-job"
MOST_VERDICTS = 100
"""Ends of plans that one look writes."""


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

    def count(self, namespace: str | None, name: str) -> int:
        """Number of plans for jobs of this name, judged ones among them."""
        return len(self._plans.by_index(BY_OWNER_JOB, f"{namespace}/{name}"))

    def vacant(self, job: ElasticJob) -> Vacant:
        """The job's retired slots of which nothing is left, and what is being deleted is still left."""
        if not job.status.retired:
            return {}
        key = f"{job.metadata.namespace}/{job.metadata.name}"
        workers = self._workers.by_index(BY_JOB, key)
        there: set[Slot] = {(raw["spec"]["type"], raw["spec"]["index"]) for raw in workers}
        for raw in self._pods.by_index(BY_JOB, key):
            if (index := number_label(raw, names.LABEL_INDEX)) is not None:
                there.add((raw["metadata"]["labels"][names.LABEL_TYPE], index))
        return vacant_slots(job, there)


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


class ScaleWriter:
    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._plans = cache.store(SCALEPLANS)
        self._job_plans = JobPlans(cache)
        self._refused: Memory[tuple[RefusedRequest, float]] = cache.store(ELASTICJOBS).memory()
        """The job's last request of dlr's own that was refused, and when, on the monotonic clock."""

    def refused(self, job: ElasticJob) -> RefusedRequest | None:
        """The request of dlr's own that is not to be repeated for this generation of the job."""
        refused, at = self._refused.get(job.metadata.uid) or (None, 0.0)
        left_seconds = REFUSED_SECONDS - (self._clock.monotonic() - at)
        if refused is None or refused.generation != job.metadata.generation or left_seconds <= 0:
            return None
        return replace(refused, left_seconds=left_seconds)

    async def write(self, job: ElasticJob, raw: Object, version: str, write: ScaleWrite) -> bool:
        """Writes a request into its job, or says why it cannot be.

        Args:
            version: the job's resourceVersion after the last write.

        Returns:
            whether it is written.

        Raises:
            Conflict: the job or the plan has changed since they were read.
        """
        refusal = write.refusal or await self._try(job, version, write)
        if not refusal:
            tell(self._recorder, raw, write.events)
            return True
        if write.plan is not None:
            await self.conclude([refused_by_server(write.plan, refusal)])
            return False
        refused = RefusedRequest(write.request, job.metadata.generation, refusal, REFUSED_SECONDS)
        self._refused.put(job.metadata.uid, (refused, self._clock.monotonic()))
        self._recorder.event(raw, "Warning", "ScaleRefused", f"{write.request.by}: {refusal}")
        return False

    async def _try(self, job: ElasticJob, version: str, write: ScaleWrite) -> str:
        """Why the API server does not take the request; empty if it does."""
        metadata = job.metadata
        if write.plan is not None:
            await self._check_unchanged(write.plan)
        patch = write.request.to_patch()
        patch["metadata"]["resourceVersion"] = version
        try:
            answer = await self._client.patch(ELASTICJOBS, metadata.name, patch, metadata.namespace)
        except Refused as error:
            if not is_refusal(error):
                raise
            return str(error)
        changed = differing(answer, write.request.replicas)
        if changed:
            await self.withdraw(job, answer["metadata"]["resourceVersion"])
        return changed

    async def withdraw(self, job: ElasticJob, version: str) -> None:
        """Takes out of its job a request whose counts a webhook has refused: the rest is not to be merged."""
        metadata = {"resourceVersion": version, "annotations": {names.ANNOTATION_SCALE: None}}
        name, namespace = job.metadata.name, job.metadata.namespace
        await self._client.patch(ELASTICJOBS, name, {"metadata": metadata}, namespace)

    async def _check_unchanged(self, plan: ScalePlan) -> None:
        """A cache that lags may show a plan that has its verdict already, and would be applied twice."""
        metadata = plan.metadata
        try:
            raw = await self._client.get(SCALEPLANS, metadata.name, metadata.namespace)
        except NotFound:
            raw = {"metadata": {"resourceVersion": None}}
        if raw["metadata"]["resourceVersion"] != metadata.resource_version:
            raise Conflict(409, "Conflict", f"the ScalePlan {metadata.name} has changed")

    async def conclude(self, verdicts: Sequence[PlanVerdict]) -> None:
        """Writes the ends of plans. Each wakes the job, so others may follow."""
        for verdict in verdicts[:MOST_VERDICTS]:
            metadata = verdict.plan.metadata
            raw = self._plans.get(metadata.namespace, metadata.name)
            if raw is not None:
                await carry_out(self._client, self._recorder, raw, [verdict.act(self._clock.now())])

    async def refuse_for(self, namespace: str | None, name: str) -> None:
        """Refuses the plans of a job that the cache does not show; the server may have one that is new."""
        count = self._job_plans.count(namespace, name)
        plans = await computed(count, self._job_plans.unjudged, namespace, name, None)
        if not plans:
            return
        try:
            raw = await self._client.get(ELASTICJOBS, name, namespace)
        except NotFound:
            raw = None
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            await self.conclude(without_job(plans))
