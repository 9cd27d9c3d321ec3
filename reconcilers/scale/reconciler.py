"""The ScalePlan reconciler: validates a plan, writes its counts to the job's spec, tells how far it has come.

All else that a plan asks, the ElasticJob reconciler takes over into the job's status (`scale/uptake.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.cache import Cache
from controller.client import Client
from controller.errors import ApiError, NotFound
from controller.events import EventRecorder, EventType
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES, Object
from controller.slices import Slices, computed
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.scaleplan import ScalePlan, ScalePlanPhase, ScalePlanStatus
from reconcilers.observed.ownership import BY_JOB
from reconcilers.observed.status_patch import merge_patch, validated
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, SCALEPLANS
from reconcilers.runtime.refused import is_refusal
from reconcilers.scale.job_plans import BY_OWNER_JOB, is_for
from reconcilers.scale.progress import Situation, Step, next_step, refused_by_server


class ScalePlanReconciler(Reconciler):
    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._plans = cache.store(SCALEPLANS)
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._nodes = cache.store(NODES)
        self._parse_plan = cache.models(SCALEPLANS, ScalePlan)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    async def reconcile(self, request: Request) -> Result:
        raw = self._plans.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or is_over(raw):
            return Result()
        plan = self._parse_plan.parse(raw)
        raw_job = await self._job_of(plan, raw)
        job = None if raw_job is None else self._parse_job.parse_or_none(raw_job)
        if raw_job is not None and job is None:
            return Result()  # the job says that it cannot be read, and wakes its plans when it is corrected
        workers, nodes = await self._workers_of(plan), self._nodes.list()
        seen = Situation(plan, job, self._siblings(plan), workers, nodes)
        step = await computed(len(workers) + len(nodes), next_step, seen, self._clock.now())
        if step.counts is not None and seen.job is not None:
            step = await self._write_counts(plan, seen.job, step)
        if step.status is not None:
            await self._write(raw, step.status)
        return Result()

    async def _job_of(self, plan: ScalePlan, raw_plan: Object) -> Object | None:
        """A job that the cache does not show may have come with the plan: then the server knows it.

        None also if the plan was that of an earlier job of this name, and garbage collection is yet to come.
        """
        namespace, name = plan.metadata.namespace, plan.spec.owner_job
        raw = self._jobs.get(namespace, name)
        if raw is None:
            try:
                raw = await self._client.get(ELASTICJOBS, name, namespace)
            except NotFound:
                return None
        return raw if is_for(raw_plan, raw["metadata"]["uid"]) else None

    def _siblings(self, plan: ScalePlan) -> list[ScalePlan]:
        key = f"{plan.metadata.namespace}/{plan.spec.owner_job}"
        others = (raw for raw in self._plans.by_index(BY_OWNER_JOB, key))
        return [
            other
            for raw in others
            if raw["metadata"]["uid"] != plan.metadata.uid and not raw["metadata"].get("deletionTimestamp")
            for other in self._parse_plan.readable([raw])
        ]

    async def _workers_of(self, plan: ScalePlan) -> list[ElasticWorker]:
        key = f"{plan.metadata.namespace}/{plan.spec.owner_job}"
        workers, slices = list[ElasticWorker](), Slices()
        for raw in self._workers.by_index(BY_JOB, key):
            workers += self._parse_worker.readable([raw])
            await slices.pause()
        return workers

    async def _write_counts(self, plan: ScalePlan, job: ElasticJob, step: Step) -> Step:
        """Only if the job is as it was when this was decided: then it has not named another plan since."""
        metadata = job.metadata
        counts = {type_: {"replicas": count} for type_, count in (step.counts or {}).items()}
        patch = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "spec": {"replicaSpecs": counts},
        }
        try:
            answer = await self._client.patch(ELASTICJOBS, metadata.name, patch, metadata.namespace)
        except ApiError as error:
            if not is_refusal(error):
                raise
            return refused_by_server(plan, str(error), self._clock.now())
        kept = _kept(answer, step.counts or {})
        return refused_by_server(plan, kept, self._clock.now()) if kept else Step()

    async def _write(self, raw: Object, status: ScalePlanStatus) -> None:
        patch = merge_patch(raw.get("status", {}), validated(status))
        metadata = raw["metadata"]
        await self._client.patch(
            SCALEPLANS,
            metadata["name"],
            {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch},
            metadata["namespace"],
            subresource="status",
        )
        before = raw.get("status", {}).get("phase")
        if status.phase is not None and status.phase.value != before:
            self._tell(raw, status)

    def _tell(self, raw: Object, status: ScalePlanStatus) -> None:
        assert status.phase is not None
        told = {c.type: c for c in status.conditions}
        condition = told.get(status.phase.value) or told["Progressing"]
        type_: EventType = "Warning" if status.phase is ScalePlanPhase.FAILED else "Normal"
        reason = condition.reason if status.phase is ScalePlanPhase.FAILED else status.phase.value
        self._recorder.event(raw, type_, reason, condition.message)


def _kept(job: Object, counts: Mapping[str, int]) -> str:
    """Which count is not as it was just written: to write it again would change nothing either."""
    for type_, count in counts.items():
        stored = job["spec"]["replicaSpecs"].get(type_, {}).get("replicas")
        if stored != count:
            return (
                f"a webhook made spec.replicaSpecs[{type_}].replicas {stored}, where the plan wrote {count}"
            )
    return ""


def is_over(plan: Object) -> bool:
    return plan.get("status", {}).get("finishTime") is not None
