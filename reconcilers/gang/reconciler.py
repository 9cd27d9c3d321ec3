"""The reconciler of a gang's PodGroup: it is there while the job is to run, and follows its minimum."""

from __future__ import annotations

from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import NotFound, Refused
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from crds.elasticjob import ElasticJob
from crds.grouping import is_grouped
from reconcilers.gang.podgroup import UNAVAILABLE_RETRY_SECONDS, pod_group_of
from reconcilers.observed.ownership import spares_its_own
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.refused import not_served
from reconcilers.worker.companions import RECHECK_SECONDS, Companions


class GangReconciler(Reconciler):
    def __init__(self, client: AsyncClient, cache: Cache, recorder: EventRecorder) -> None:
        self._companions = Companions(client, recorder)
        self._jobs = cache.store(ELASTICJOBS)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)

    async def reconcile(self, request: Request) -> Result:
        """Keep the PodGroup. Pods that wait say that the cluster does not serve such groups."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw) or is_grouped(raw):
            return Result()
        job = self._parse_job.parse(raw)
        group, runs = pod_group_of(job), not (job.stops or job.status.finished)
        if group is None:
            return Result()
        failures: list[Refused] = []
        with self._companions.reporting(raw, group.resource.kind, failures):
            try:
                found = await self._companions.get(group.resource, group.name, group.namespace)
                await self._companions.keep(group.resource, raw, found, group.wanted if runs else None)
            except NotFound as error:
                if not not_served(error):
                    raise
                return Result(UNAVAILABLE_RETRY_SECONDS)
        if failures:
            raise failures[0]
        return Result(RECHECK_SECONDS if runs else None)
