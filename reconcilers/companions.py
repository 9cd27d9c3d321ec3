"""What a job needs beside its Pods: a PodDisruptionBudget, for a gang the PodGroup of its scheduler, and the
Service that gives the Pods of a job with parameter servers their names.

They are there while the job is to run, follow its minimum, and go when it is suspended or has finished. What
an earlier job of the same name has left is replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import ELASTICJOBS, PODDISRUPTIONBUDGETS, SERVICES, Resource
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.pod.builder import companion_metadata
from reconcilers.pod.gang import UNAVAILABLE_RETRY_SECONDS, PodGroup, not_served, pod_group_of
from reconcilers.pod.ownership import belongs_to, is_leftover
from reconcilers.refused import is_refusal
from reconcilers.roles.rules import in_cluster
from reconcilers.status_patch import merge_patch
from reconcilers.world.minimum import minimum_workers
from reconcilers.world.slots import slot_count

Object = dict[str, Any]

RECHECK_SECONDS = 60.0
"""PodGroups are not watched, since a cluster need not know them; nor are the few Services."""


class CompanionReconciler(Reconciler):
    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder) -> None:
        self._client = client
        self._recorder = recorder
        self._jobs = cache.store(ELASTICJOBS)
        self._budgets = cache.store(PODDISRUPTIONBUDGETS)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()  # garbage collection takes what the job made
        job = self._parse_job.parse(raw)
        runs, group = _is_to_run(job), pod_group_of(job)
        failures: list[ApiError] = []
        with self._told(raw, PODDISRUPTIONBUDGETS.kind, failures):
            found = self._budgets.get(job.metadata.namespace, job.metadata.name)
            await self._keep(PODDISRUPTIONBUDGETS, job, found, budget_of(job) if runs else None)
        look_again = None
        if group is not None:
            with self._told(raw, group.resource.kind, failures):
                look_again = await self._keep_group(job, group, runs=runs)
        if in_cluster(job):
            with self._told(raw, SERVICES.kind, failures):
                found = await self._get(SERVICES, job)
                await self._keep(SERVICES, job, found, service_of(job) if runs else None)
                look_again = RECHECK_SECONDS if runs else look_again
        if failures:
            raise failures[0]
        return Result(look_again)

    async def _keep_group(self, job: ElasticJob, group: PodGroup, *, runs: bool) -> float | None:
        """Seconds until it is to be looked at again. Pods that wait tell of a cluster without such groups."""
        try:
            found = await self._get(group.resource, job)
            await self._keep(group.resource, job, found, group.wanted if runs else None)
        except NotFound as error:
            if not not_served(error):
                raise
            return UNAVAILABLE_RETRY_SECONDS
        return RECHECK_SECONDS if runs else None

    async def _keep(
        self, resource: Resource, job: ElasticJob, found: Object | None, wanted: Object | None
    ) -> None:
        """Create, patch, replace or delete, if there is a need to.

        Raises:
            AlreadyExists: there was one, which has just gone, or is yet to go.
            Forbidden: the name is taken by one that is not the job's.
        """
        if wanted is not None and found is None:
            try:
                await self._client.create(resource, wanted)
                return
            except AlreadyExists:  # the cache is late, or does not see it for want of our label
                found = await self._get(resource, job)
                if found is None:
                    raise  # gone meanwhile, of which nobody would tell us: it is made with the next try
        if found is None:
            return
        metadata = found["metadata"]
        if not belongs_to(found, job.metadata.uid):
            if wanted is not None and is_leftover(found, wanted):
                await self._delete(resource, found)
                await self._client.create(resource, wanted)
            elif wanted is not None:
                message = f"there is one called {job.metadata.name}, which is not this job's"
                raise Forbidden(403, "Forbidden", message)
        elif wanted is None:
            await self._delete(resource, found)
        elif patch := _difference(found, wanted):
            await self._client.patch(resource, metadata["name"], patch, metadata["namespace"])

    async def _delete(self, resource: Resource, found: Object) -> None:
        metadata = found["metadata"]
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(resource, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def _get(self, resource: Resource, job: ElasticJob) -> Object | None:
        try:
            return await self._client.get(resource, job.metadata.name, job.metadata.namespace)
        except NotFound as error:
            if not_served(error):
                raise
            return None

    @contextlib.contextmanager
    def _told(self, raw: Object, kind: str, failures: list[ApiError]) -> Iterator[None]:
        """A refusal is told on the job, and tried again with the back-off; the other object does not wait."""
        try:
            yield
        except ApiError as error:
            if is_refusal(error):
                self._recorder.event(
                    raw, "Warning", f"{kind}Refused", f"its {kind} could not be made: {error}"
                )
            failures.append(error)


def budget_of(job: ElasticJob) -> Object | None:
    """The PodDisruptionBudget to create: evictions leave the job the workers that it needs to go on training.

    None if it needs all of them. Then a budget would let no drain end, and save nothing: the first eviction
    stops the training whatever becomes of the others, and one restart for all is better than one for each.

    An integer `minAvailable` is the only form that counts Pods of a controller that Kubernetes does not know:
    https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
    """
    minimum, worker = minimum_workers(job), job.spec.replica_specs.get(names.WORKER)
    if worker is None or not 0 < minimum < slot_count(worker):
        return None
    return {
        "apiVersion": PODDISRUPTIONBUDGETS.api_version,
        "kind": PODDISRUPTIONBUDGETS.kind,
        "metadata": companion_metadata(job),
        "spec": {
            "minAvailable": minimum,
            "selector": {"matchLabels": {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a Pod that is broken anyway holds no drain up
        },
    }


def service_of(job: ElasticJob) -> Object:
    """The headless Service by which each Pod has a name, before it is ready too.

    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
    """
    return {
        "apiVersion": SERVICES.api_version,
        "kind": SERVICES.kind,
        "metadata": companion_metadata(job),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: job.metadata.name},
        },
    }


def _is_to_run(job: ElasticJob) -> bool:
    phase = job.status.phase
    return not job.spec.suspend and (phase is None or not phase.finished)


def _difference(found: Object, wanted: Object) -> Object:
    """The patch of what we say; a scheduler's webhook may have filled in the rest."""
    has = found["metadata"].get("labels") or {}
    labels = {key: value for key, value in wanted["metadata"]["labels"].items() if has.get(key) != value}
    said = wanted["spec"]
    spec = merge_patch({key: value for key, value in found["spec"].items() if key in said}, said)
    patch = {"metadata": {"labels": labels} if labels else {}, "spec": spec}
    return {part: change for part, change in patch.items() if change}
