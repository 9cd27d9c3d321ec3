"""Writes requests into jobs, and finds the slots of a job that can be used again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import Refused
from controller.resources import PODS, Object
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.observed.ownership import BY_JOB, number_label
from reconcilers.observed.slots import Slot, vacant_slots
from reconcilers.runtime.acts import tell, telling_refusals
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.refused import is_refusal
from reconcilers.runtime.tools import Tools
from reconcilers.scale.request import REFUSED_SECONDS, RefusedRequest, ScaleRequest, ScaleWrite, differing
from reconcilers.scale.uptake import Vacant


class VacantSlots:
    """Finds in the cache the slots of a job that can be used again."""

    def __init__(self, cache: Cache) -> None:
        self._pods = cache.store(PODS)
        self._workers = cache.store(ELASTICWORKERS)

    def of(self, job: ElasticJob) -> Vacant:
        """The job's retired slots without workers and Pods, not even ones that are being deleted."""
        if not job.status.retired:
            return {}
        key = f"{job.metadata.namespace}/{job.metadata.name}"
        workers = self._workers.by_index(BY_JOB, key)
        there: set[Slot] = {(raw["spec"]["type"], raw["spec"]["index"]) for raw in workers}
        for raw in self._pods.by_index(BY_JOB, key):
            if (index := number_label(raw, names.LABEL_INDEX)) is not None:
                there.add((raw["metadata"]["labels"][names.LABEL_TYPE], index))
        return vacant_slots(job, there)


def pods_job(pod: dict[str, Any]) -> Iterable[str]:
    """Index function: the job of a worker's Pod."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    ours = {names.LABEL_JOB, names.LABEL_TYPE, names.LABEL_INDEX} <= labels.keys()
    return [f"{metadata['namespace']}/{labels[names.LABEL_JOB]}"] if ours else []


async def write_into(client: AsyncClient, job: ElasticJob, version: str, request: ScaleRequest) -> str:
    """Write a request into its job.

    Args:
        version: the job's resourceVersion after the last write.

    Returns:
        why the API server refuses it, or a webhook changes it; empty if it is written.

    Raises:
        Conflict: the job has changed since it was read.
        WebhookUnavailable: a webhook has to judge the request, and does not answer.
    """
    metadata = job.metadata
    patch = request.to_patch()
    patch["metadata"]["resourceVersion"] = version
    try:
        answer = await client.patch(ELASTICJOBS, metadata.name, patch, metadata.namespace)
    except Refused as error:
        if not is_refusal(error):
            raise
        return str(error)
    changed = differing(answer, request.replicas)
    if changed:
        await withdraw(client, job, answer["metadata"]["resourceVersion"])
    return changed


async def withdraw(client: AsyncClient, job: ElasticJob, version: str) -> None:
    """Remove from its job a request whose counts a webhook has refused, so that the rest is not merged."""
    metadata = {"resourceVersion": version, "annotations": {names.ANNOTATION_SCALE: None}}
    await client.patch(ELASTICJOBS, job.metadata.name, {"metadata": metadata}, job.metadata.namespace)


class ScaleWriter:
    """Writes dlr's own requests, and remembers those refused."""

    def __init__(self, tools: Tools) -> None:
        self._client, self._recorder, self._clock = tools.client, tools.recorder, tools.clock
        self._refused: ObjectMemory[tuple[RefusedRequest, float]] = tools.cache.store(ELASTICJOBS).memory()
        """The job's last refused request, and the time of that, on the monotonic clock."""

    def refused(self, job: ElasticJob) -> RefusedRequest | None:
        """The refused request that is not repeated yet for this generation of the job."""
        refused, at = self._refused.get(job.metadata.uid) or (None, 0.0)
        left_seconds = REFUSED_SECONDS - (self._clock.monotonic() - at)
        if refused is None or refused.generation != job.metadata.generation or left_seconds <= 0:
            return None
        return replace(refused, left_seconds=left_seconds)

    async def write(self, job: ElasticJob, raw: Object, version: str, write: ScaleWrite) -> bool:
        """Write a request into its job, or report why it is refused.

        Args:
            version: the job's resourceVersion after the last write.

        Returns:
            whether it is written.

        Raises:
            Conflict: the job has changed since it was read.
        """
        with telling_refusals(self._recorder, raw):
            refusal = write.refusal or await write_into(self._client, job, version, write.request)
        if not refusal:
            tell(self._recorder, raw, [write.event] if write.event is not None else ())
            return True
        refused = RefusedRequest(write.request, job.metadata.generation, refusal, REFUSED_SECONDS)
        self._refused.put(job.metadata.uid, (refused, self._clock.monotonic()))
        self._recorder.event(raw, "Warning", "ScaleRefused", f"{write.request.by}: {refusal}")
        return False
