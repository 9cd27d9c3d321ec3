"""The reconciler of jobs with replica groups: see, plan, apply, as `reconcilers/job/reconciler.py` does.

The status carries the resourceVersion that it was decided from; the ElasticWorld is a projection of what was
written; the groups' ElasticJobs come last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from controller.cache import Cache
from controller.client import Client
from controller.errors import NotFound
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import Object
from crds.elasticjob import ElasticJob
from reconcilers.groups.plan import GroupsPlan, group_job, made, plan_groups
from reconcilers.job.published import writes_of_world
from reconcilers.observed.groups import group_of, is_grouped
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.observed.run_policy import seconds_to_expiry
from reconcilers.observed.status_patch import merge_patch
from reconcilers.runtime.acts import Act, Verb, carry_out, deleted, tell
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORLDS


class ReplicaGroupsReconciler(Reconciler):
    """Keeps the groups of jobs that have any; other jobs are the ElasticJob reconciler's."""

    def __init__(self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._jobs = cache.store(ELASTICJOBS)
        self._worlds = cache.store(ELASTICWORLDS)
        self._parse = cache.models(ELASTICJOBS, ElasticJob)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or not is_grouped(raw):
            return Result()
        job, now = self._parse.parse(raw), self._clock.now()
        remaining = seconds_to_expiry(job, now)
        if remaining is not None and remaining <= 0:
            await carry_out(self._client, self._recorder, raw, [deleted(ELASTICJOBS, job.metadata)])
            return Result()
        plan = plan_groups(job, raw.get("status") or {}, self._groups_of(raw), now)
        await self._apply(raw, plan)
        waits = [wait for wait in (plan.look_again_seconds, remaining) if wait is not None]
        return Result(min(waits, default=None))

    def _groups_of(self, raw: Object) -> dict[int, ElasticJob]:
        groups: dict[int, ElasticJob] = {}
        for found in self._jobs.by_index(BY_OWNER, raw["metadata"]["uid"]):
            is_here = found["metadata"]["namespace"] == raw["metadata"]["namespace"]
            if (group := group_of(found)) is not None and is_here:
                for each in self._parse.readable([found]):
                    groups[group.index] = each
        return groups

    async def _apply(self, raw: Object, plan: GroupsPlan) -> None:
        metadata = raw["metadata"]
        if plan.status_patch:
            body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": plan.status_patch}
            raw = await self._client.patch(
                ELASTICJOBS, metadata["name"], body, metadata["namespace"], subresource="status"
            )
            tell(self._recorder, raw, plan.events)
        for act in writes_of_world(raw, self._worlds.get(metadata["namespace"], metadata["name"])):
            await carry_out(self._client, self._recorder, raw, [act])
        await carry_out(self._client, self._recorder, raw, plan.acts)
        if plan.outdated:
            await self._renew(raw, plan.outdated)

    async def _renew(self, raw: Object, names_of_groups: tuple[str, ...]) -> None:
        """Make groups, or make them what the job wants them to be; the cache may have parts of both alone."""
        metadata = raw["metadata"]
        whole = await self._client.get(ELASTICJOBS, metadata["name"], metadata["namespace"])
        if whole["metadata"]["uid"] != metadata["uid"]:
            return  # it is another job by now, which has a look of its own
        for act in [act async for act in self._writes(whole, names_of_groups)]:
            await carry_out(self._client, self._recorder, raw, [act])

    async def _writes(self, whole: Object, names_of_groups: tuple[str, ...]) -> AsyncIterator[Act]:
        for name in names_of_groups:
            try:
                found = await self._client.get(ELASTICJOBS, name, whole["metadata"]["namespace"])
            except NotFound:
                yield made(whole, name)
                continue
            group = group_of(found)
            if group is None or group.uid != whole["metadata"]["uid"]:
                continue  # somebody else's, of that name
            wanted = group_job(whole, group.index)
            patch = {
                "metadata": {
                    "resourceVersion": found["metadata"]["resourceVersion"],
                    "annotations": wanted["metadata"]["annotations"],
                },
                "spec": merge_patch(found["spec"], wanted["spec"]),
            }
            yield Act(Verb.PATCH, ELASTICJOBS, name, whole["metadata"]["namespace"], patch)
