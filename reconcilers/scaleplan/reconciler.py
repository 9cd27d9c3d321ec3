"""The reconciler of a job's ScalePlans: it observes, chooses and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.errors import Conflict, NotFound, WebhookUnavailable
from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed
from controller.store import ObjectMemory
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped
from crds.scaleplan import ScalePlan
from reconcilers.observed.ownership import staying, workers_owned_by
from reconcilers.runtime.acts import carry_out
from reconcilers.runtime.kinds import ELASTICJOBS, SCALEPLANS
from reconcilers.runtime.refused import RETRY_SECONDS
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.permission import CountsFault, no_fault
from reconcilers.scale.request import is_merged
from reconcilers.scale.writer import write_into
from reconcilers.scaleplan.plan_request import request_of
from reconcilers.scaleplan.verdicts import (
    PlanVerdict,
    applied,
    choose_plan,
    delayed,
    refused_by_server,
    without_job,
)

BY_OWNER_JOB = "owner-job"
MOST_VERDICTS = 100
"""Limit of verdicts that one look writes. Each of them triggers the next look."""


class ScalePlanReconciler(WithTools):
    """Judges the ScalePlans of one job, and writes the newest feasible one into the job."""

    def __init__(self, tools: Tools, counts_fault: CountsFault = no_fault) -> None:
        super().__init__(tools)
        self._counts_fault = counts_fault
        self._plans = tools.cache.store(SCALEPLANS)
        self._parse = tools.cache.models(SCALEPLANS, ScalePlan)
        self._retry_at: ObjectMemory[float] = self._plans.memory()
        """Time of the next try of a plan for which a webhook is away, on the monotonic clock."""

    async def reconcile(self, request: Request) -> Result:
        """Reconcile the plans of the job of this name."""
        found = self._plans.by_index(BY_OWNER_JOB, f"{request.namespace}/{request.name}")
        if not found:
            return Result()
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            await self._refuse_for(request, await computed(len(found), self._unjudged, found, None))
            return Result()
        job = self._parse_job.parse(raw)
        if not (is_merged(job) or job.status.finished or is_grouped(raw)):
            return Result()  # the job's next status triggers a look
        plans = await computed(len(found), self._unjudged, found, job.metadata.uid)
        if not plans:
            return Result()
        workers = await self._named(job, plans)
        nodes = self._nodes.list() if any(map(_asks_resources, plans)) else []
        size = len(plans) + len(workers) + len(nodes)
        chosen, verdicts = await computed(size, choose_plan, plans, job, workers, nodes)
        await self._conclude(verdicts)
        if chosen is None or len(verdicts) > MOST_VERDICTS:
            return Result()
        left_seconds = (self._retry_at.get(chosen.metadata.uid) or 0.0) - self._clock.monotonic()
        return Result(left_seconds) if left_seconds > 0 else await self._apply(job, chosen)

    async def _apply(self, job: ElasticJob, plan: ScalePlan) -> Result:
        """Write a plan's request into its job, and its verdict; or why it waits."""
        try:
            verdict = await self._written(job, plan)
        except WebhookUnavailable as error:
            self._retry_at.put(plan.metadata.uid, self._clock.monotonic() + RETRY_SECONDS)
            await self._conclude([delayed(plan, error)])
            return Result(RETRY_SECONDS)
        await self._conclude([verdict])
        return Result()

    def _unjudged(self, found: Sequence[Object], job_uid: str | None) -> list[ScalePlan]:
        """The job's plans without a verdict; if there is no job, those that no earlier one owns."""
        return list(self._parse.readable(r for r in found if not is_judged(r) and is_for(r, job_uid)))

    async def _named(self, job: ElasticJob, plans: Sequence[ScalePlan]) -> list[ElasticWorker]:
        """The job's workers, if a plan names any."""
        if not any(plan.spec.migrate_pods for plan in plans):
            return []
        metadata = job.metadata
        found = workers_owned_by(self._workers, metadata.namespace, metadata.uid)
        return await computed(len(found), lambda: list(self._parse_worker.readable(staying(found))))

    async def _written(self, job: ElasticJob, plan: ScalePlan) -> PlanVerdict:
        """Write a plan's request into its job, which names the plan, so that a look after a crash sees it.

        Raises:
            Conflict: the job or the plan has changed since they were read.
            WebhookUnavailable: a webhook has to judge the request, and does not answer.
        """
        metadata = plan.metadata
        try:
            stored = await self._client.get(SCALEPLANS, metadata.name, metadata.namespace)
        except NotFound:
            stored = {"metadata": {"resourceVersion": None}}
        if stored["metadata"]["resourceVersion"] != metadata.resource_version:
            # A stale cache may show a plan without the verdict that it has, which would be applied twice.
            raise Conflict(409, "Conflict", f"the ScalePlan {metadata.name} has changed")
        request = request_of(plan, job)
        refusal = self._counts_fault(job, request.replicas)
        refusal = refusal or await write_into(self._client, job, job.metadata.resource_version, request)
        return refused_by_server(plan, refusal) if refusal else applied(plan, job)

    async def _conclude(self, verdicts: Sequence[PlanVerdict]) -> None:
        for verdict in verdicts[:MOST_VERDICTS]:
            metadata = verdict.plan.metadata
            raw = self._plans.get(metadata.namespace, metadata.name)
            if raw is not None:
                await carry_out(self._client, self._recorder, raw, [verdict.act(self._clock.now())])

    async def _refuse_for(self, request: Request, plans: Sequence[ScalePlan]) -> None:
        """Refuse the plans of a job that the cache lacks, unless the API server has it, as a new one."""
        if not plans:
            return
        try:
            raw = await self._client.get(ELASTICJOBS, request.name, request.namespace)
        except NotFound:
            raw = None
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            await self._conclude(without_job(plans))


def is_judged(plan: Object) -> bool:
    """Whether the plan has its verdict."""
    return (plan.get("status") or {}).get("phase") is not None


def is_for(plan: Object, job_uid: str | None) -> bool:
    """Whether the plan is for this job: neither being deleted, nor owned by an earlier job of its name."""
    metadata = plan["metadata"]
    owners = {o["uid"] for o in metadata.get("ownerReferences") or () if o["kind"] == ELASTICJOBS.kind}
    return not metadata.get("deletionTimestamp") and (not owners or job_uid in owners)


def owner_job(plan: Object) -> Iterable[str]:
    """Index function: the job of a ScalePlan."""
    return [f"{plan['metadata']['namespace']}/{plan['spec']['ownerJob']}"]


def planned_job(plan: Object) -> Iterable[Request]:
    """The job of a ScalePlan, by which its plans are reconciled together."""
    return [Request(plan["metadata"].get("namespace"), plan["spec"]["ownerJob"])]


def _asks_resources(plan: ScalePlan) -> bool:
    return any(asked.resource for asked in plan.spec.replica_resource_specs.values())
