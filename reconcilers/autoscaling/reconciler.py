"""The reconciler of autoscaling: it observes, plans and writes."""

from __future__ import annotations

from functools import partial

from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed, let_go
from crds.elasticjob import ElasticJob
from crds.grouping import is_grouped
from reconcilers.autoscaling import growth, profile, usage
from reconcilers.autoscaling.plan import SizePlan, SizeSeen, plan_autoscaling
from reconcilers.goodput.goodput import with_comparable_steps
from reconcilers.observed.ownership import BY_OWNER, staying, workers_owned_by
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import tell, write_status
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.writer import ScaleWriter


class AutoscalingReconciler(WithTools):
    """Sizes one job by its history, its own figures and free room."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._scale = ScaleWriter(tools)

    async def reconcile(self, request: Request) -> Result:
        """Reconcile the job of this name."""
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or is_grouped(raw):
            return Result()
        job = self._parse_job.parse(raw)
        begins = profile.is_due(job, self._workers.count(BY_OWNER, job.metadata.uid) > 0)
        if not (begins or usage.is_due(job) or growth.concerns(job)):
            return Result()
        found = workers_owned_by(self._workers, job.metadata.namespace, job.metadata.uid)
        size = len(found)
        if begins:
            size += self._jobs.count("namespace", job.metadata.namespace) + len(self._nodes)
        look = await computed(size, self._read, job, raw, found, begins)
        plan = await computed(size, partial(plan_autoscaling, look, self._clock.now()))
        workers = list(look.workers)
        del look, found
        await let_go(workers)
        return await self._apply(job, raw, plan)

    def _read(self, job: ElasticJob, raw: Object, found: list[Object], begins: bool) -> SizeSeen:
        workers = with_comparable_steps(job, Workers(self._parse_worker.readable(staying(found))))
        refused = self._scale.refused(job)
        if not begins:
            return SizeSeen(job, raw, workers, refused=refused)
        jobs = self._jobs.list(job.metadata.namespace)
        ended = (each for each in jobs if each.get("status", {}).get("completionTime"))
        history = list(self._parse_job.readable(ended))
        return SizeSeen(job, raw, workers, history, self._nodes.list(), refused)

    async def _apply(self, job: ElasticJob, raw: Object, plan: SizePlan) -> Result:
        """Write the status, and then the request, each with the resourceVersion from which it was decided.

        Raises:
            Conflict: the job has changed since it was read.
        """
        version = job.metadata.resource_version
        if plan.status_patch:
            written = await write_status(self._client, ELASTICJOBS, raw, plan.status_patch)
            version = written["metadata"]["resourceVersion"]
        tell(self._recorder, raw, [plan.event] if plan.event is not None else ())
        if plan.write is not None and not await self._scale.write(job, raw, version, plan.write):
            return Result(0.0)
        return Result(plan.look_again_seconds)
