"""The ElasticJob reconciler: see, plan, apply.

`JobReader` reads the facts, `plan_job` or another planner decides, and this module writes. The status is
written before the acts, even if nothing in it changes. It carries the resourceVersion of the decision, so
only one of two controllers goes on to act: no round is published twice, and no outdated decision is carried
out. The first act is the ElasticWorld, which follows from the status (`published.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf

from controller.errors import ApiError
from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed, let_go
from controller.store import ObjectMemory
from crds.elasticjob import ElasticJob
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.job.published import writes_of_world
from reconcilers.job.seen import NOBODY, JobReader, Vetter
from reconcilers.look import ObservedJob
from reconcilers.observed.options import DEFAULT_WORKERS_PER_NAMESPACE
from reconcilers.runtime.acts import Act, RequestVerb, carry_out, tell, telling_refusals, write_status
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from reconcilers.runtime.refused import is_refusal, retry_seconds
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.request import is_left_over
from reconcilers.scale.writer import withdraw

LOOK_AGAIN_SLACK_SECONDS = 0.01


class ElasticJobReconciler(WithTools):
    def __init__(
        self,
        tools: Tools,
        most_workers: int = DEFAULT_WORKERS_PER_NAMESPACE,
        plan: Callable[[ObservedJob, datetime], JobPlan] = plan_job,
        vetter: Vetter = NOBODY,
    ) -> None:
        super().__init__(tools)
        self._plan_of = plan
        self._view = JobReader(tools.cache, tools.clock, most_workers, vetter)
        self._worlds = tools.cache.store(ELASTICWORLDS)
        self._written_at: ObjectMemory[float] = self._jobs.memory()
        """Time of the last write of each job's status, on the monotonic clock."""
        self._refused: ObjectMemory[tuple[str, float]] = self._jobs.memory()
        """Last refusal of a job's ElasticWorkers, and the monotonic time until which none is created: present
        workers trigger reconciles, which must not try to create all missing ones each time."""

    async def reconcile(self, request: Request) -> Result:
        if self._view.is_grouped(request):
            return Result()  # its groups are jobs, and reconcilers/groups makes them
        seen = await self._view.of(request)
        if seen is None:
            return Result()
        workers = list(seen.workers)
        refused, until = self._refused.get(seen.job.metadata.uid) or ("", 0.0)
        left_seconds = until - self._clock.monotonic()
        seen = replace(
            seen,
            workers_refused=refused,
            workers_refused_seconds=left_seconds if left_seconds > 0 else None,
            status_age_seconds=self._status_age_seconds(seen.job),
            contact_seconds=self._clock.monotonic() - self._contact.since,
        )
        result = await self._look(seen)
        del seen  # which frees all but `workers`; the cache may have newer ones by now
        await let_go(workers)
        return result

    async def _look(self, seen: ObservedJob) -> Result:
        plan = await self._plan(seen)
        if plan.request is not None and (refused := await self._refusal_of(seen, plan.request)):
            plan = await self._plan(replace(seen, request_refused=refused))
        await self._apply(seen, plan)
        wait = plan.look_again_seconds
        return Result(None if wait is None else wait + LOOK_AGAIN_SLACK_SECONDS)

    async def _plan(self, seen: ObservedJob) -> JobPlan:
        size = len(seen.workers) + seen.vetting.look_size + seen.nodes_to_compare
        return await computed(size, self._plan_of, seen, self._clock.now())

    async def _refusal_of(self, seen: ObservedJob, request: Act) -> str:
        """Create the check, if the job is unchanged since it was read: a check of workers stops training.

        Returns:
            The API server's reason for refusing it; else empty.

        Raises:
            Conflict: the job has changed.
        """
        await self._write(seen.raw, {})
        try:
            await carry_out(self._client, self._recorder, seen.raw, [request])
        except ApiError as error:
            if not is_refusal(error):
                raise
            return str(error)
        return ""

    async def _apply(self, seen: ObservedJob, plan: JobPlan) -> None:
        if plan.first:
            await self._write(seen.raw, {})
            await self._carry_out(seen, plan.first)
        world, version = list[Act](), seen.job.metadata.resource_version
        if plan.status_patch or plan.acts or self._writes_of_world(seen.raw):
            written = await self._write(seen.raw, plan.status_patch)
            version = written["metadata"]["resourceVersion"]
            world = list(self._writes_of_world(seen.raw | {"status": written.get("status", {})}))
        tell(self._recorder, seen.raw, plan.events)
        for act in world:
            await self._carry_out(seen, [act])
        await self._carry_out(seen, plan.acts)
        if is_left_over(seen.job):
            await withdraw(self._client, seen.job, version)

    def _writes_of_world(self, job: Object) -> Sequence[Act]:
        metadata = job["metadata"]
        return writes_of_world(job, self._worlds.get(metadata["namespace"], metadata["name"]))

    async def _carry_out(self, seen: ObservedJob, acts: Sequence[Act]) -> None:
        """Carry out acts. A refusal of ElasticWorkers delays the next attempt."""
        uid = seen.job.metadata.uid
        makes_workers = any(act.verb is RequestVerb.CREATE and act.resource == ELASTICWORKERS for act in acts)
        try:
            with telling_refusals(self._recorder, seen.raw):
                await carry_out(self._client, self._recorder, seen.raw, acts)
        except ApiError as error:
            if is_refusal(error) and makes_workers:
                self._refused.put(uid, (str(error), self._clock.monotonic() + retry_seconds()))
            raise
        if makes_workers:
            self._refused.put(uid, ("", 0.0))

    def _status_age_seconds(self, job: ElasticJob) -> float:
        written_at = self._written_at.get(job.metadata.uid)
        return inf if written_at is None else self._clock.monotonic() - written_at

    async def _write(self, raw: Object, status_patch: Object) -> Object:
        """Write the status. An empty patch changes nothing, but fails if the job has changed.

        Returns:
            The job as it is stored now.

        Raises:
            Conflict: the job has changed since it was read.
        """
        written = await write_status(self._client, ELASTICJOBS, raw, status_patch)
        if status_patch:
            self._written_at.put(raw["metadata"]["uid"], self._clock.monotonic())
        return written
