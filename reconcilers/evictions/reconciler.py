"""The reconciler of announced evictions: it observes, plans and writes."""

from __future__ import annotations

from math import inf

from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed
from controller.store import ObjectMemory
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped
from reconcilers.evictions.notices import Notices
from reconcilers.evictions.plan import EvictionPlan, FindWorker, plan_evictions
from reconcilers.observed.ownership import belongs_to
from reconcilers.observed.workers import worker_name
from reconcilers.runtime.acts import tell
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.permission import own_write
from reconcilers.scale.writer import ScaleWriter


class EvictionReconciler(WithTools):
    """Moves the workers of one job away from nodes that announce evictions."""

    def __init__(self, tools: Tools, notices: Notices) -> None:
        super().__init__(tools)
        self._notices = notices
        self._scale = ScaleWriter(tools)
        self._lapsed: ObjectMemory[frozenset[str]] = self._jobs.memory()
        """Nodes, by job, whose evictions are reported as no longer held back."""

    async def reconcile(self, request: Request) -> Result:
        """Reconcile the job of this name."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or is_grouped(raw):
            return Result()
        job = self._parse_job.parse(raw)
        plan = await computed(self._notices.look_size(job), self._plan, job)
        lapse_in = plan.held_seconds if 0 < plan.held_seconds < inf else None
        self._report_lapse(job, raw, plan)
        if plan.request is None:
            return Result(lapse_in)
        refused = self._scale.refused(job)
        write, wait_seconds = own_write(job, plan.request, refused, event=plan.event, is_free=True)
        if write is None:
            return Result(wait_seconds)
        is_written = await self._scale.write(job, raw, job.metadata.resource_version, write)
        return Result(lapse_in if is_written else 0.0)

    def _plan(self, job: ElasticJob) -> EvictionPlan:
        return plan_evictions(job, self._notices.of(job), self._finder(job))

    def _finder(self, job: ElasticJob) -> FindWorker:
        def find(index: int) -> ElasticWorker | None:
            name = worker_name(job.metadata.name, names.WORKER, index)
            raw = self._workers.get(job.metadata.namespace, name)
            if raw is None or not belongs_to(raw, job.metadata.uid):
                return None
            return self._parse_worker.parse_or_none(raw)

        return find

    def _report_lapse(self, job: ElasticJob, raw: Object, plan: EvictionPlan) -> None:
        """Report once for each node that its evictions are no longer held back."""
        uid = job.metadata.uid
        if plan.lapse is not None and plan.lapsed_nodes.difference(self._lapsed.get(uid) or ()):
            tell(self._recorder, raw, [plan.lapse])
        self._lapsed.put(uid, plan.lapsed_nodes)
