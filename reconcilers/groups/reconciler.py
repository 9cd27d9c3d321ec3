"""The reconciler of jobs with replica groups: it observes, plans and writes, as `reconcilers/job` does.

The status comes first, with the resourceVersion from which it was decided, even if nothing in it changes, so
that only one of two controllers goes on to act. Next is the ElasticWorld, a projection of that status, so a
group is deleted only when the others have a membership without it. The groups' ElasticJobs come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from math import inf

from controller.errors import AlreadyExists, ApiError, Forbidden, NotFound
from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed
from controller.store import ObjectMemory
from controller.wording import held_by
from crds.elasticjob import ElasticJob
from crds.grouping import group_name, index_of, is_grouped, owner_of_group
from reconcilers.groups.children import false_groups, group_job, renewal, with_uids
from reconcilers.groups.plan import GroupsPlan, plan_groups
from reconcilers.job.published import seconds_to_write, writes_of_world
from reconcilers.job.times import with_times_by_our_clock
from reconcilers.observed.groups import made_group
from reconcilers.observed.ownership import BY_OWNER, in_namespace, is_leftover, owner_uids, spares_its_own
from reconcilers.observed.run_policy import seconds_to_expiry
from reconcilers.runtime.acts import carry_out, deleted, in_parallel, tell, telling_refusals, write_status
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORLDS
from reconcilers.runtime.refused import is_refusal, retry_seconds
from reconcilers.runtime.tools import Tools, WithTools

WORKERS_OF_A_GROUP = 5
"""Number of ElasticWorkers that take as long to read as the ElasticJob of a group."""


class ReplicaGroupsReconciler(WithTools):
    """Reconciles jobs with replica groups; all others are the ElasticJob reconciler's."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._worlds = tools.cache.store(ELASTICWORLDS)
        self._written_at: ObjectMemory[float] = self._jobs.memory()
        """Time of the last write of each job's status, on the monotonic clock."""
        self._made: ObjectMemory[dict[int, str]] = self._jobs.memory()
        """Uids of the groups that this process has created for each job, by index, until its status has
        them."""
        self._refused: ObjectMemory[tuple[str, float]] = self._jobs.memory()
        """Why groups of each job were last refused, empty if none were; and the time of the next try, on the
        monotonic clock."""

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw) or not is_grouped(raw):
            return Result()
        now = self._clock.now()
        job = with_times_by_our_clock(self._parse_job.parse(raw), now)
        if job.metadata.deletion_timestamp is not None and job.status.finished:
            return Result()  # garbage collection deletes the groups of a deleted job
        metadata = job.metadata
        remaining = seconds_to_expiry(job, now)
        if remaining is not None and remaining <= 0:
            await carry_out(self._client, self._recorder, raw, [deleted(ELASTICJOBS, metadata)])
            return Result()
        owned = in_namespace(self._jobs.by_index(BY_OWNER, metadata.uid), metadata.namespace)
        uids = {*self._uids(job).values()}
        found = [each for each in owned if each["metadata"]["uid"] in uids]
        false = false_groups(job, [each for each in owned if each["metadata"]["uid"] not in uids])
        plan = await computed(len(found) * WORKERS_OF_A_GROUP, self._plan, job, raw, found, now)
        plan, paced_seconds = self._paced(raw, replace(plan, surplus=(*false, *plan.surplus)))
        await self._apply(raw, plan)
        waits = [wait for wait in (plan.look_again_seconds, remaining, paced_seconds) if wait is not None]
        return Result(min(waits, default=None))

    def _plan(
        self,
        job: ElasticJob,
        raw: Object,
        found: Sequence[Object],
        now: datetime,
    ) -> GroupsPlan:
        """Plan a look.

        Args:
            found: the groups that the controller created for the job.
        """
        metadata = job.metadata
        groups = self._groups_of(metadata.name, found)
        refused, until = self._refused.get(metadata.uid) or (None, 0.0)
        left_seconds = until - self._clock.monotonic()
        held_seconds = left_seconds if left_seconds > 0 else None
        status = raw.get("status") or {}
        taken = self._taken(job)
        why = next(filter(None, taken.values()), None) or refused
        return plan_groups(job, status, groups, now, set(taken), why, held_seconds)

    def _uids(self, job: ElasticJob) -> dict[int, str]:
        """The uids of the ElasticJobs that the controller created for the job's groups, by index."""
        known = {each.index: each.uid for each in job.status.groups if each.uid}
        return known | (self._made.get(job.metadata.uid) or {})

    def _taken(self, job: ElasticJob) -> dict[int, str]:
        """The groups, of this job or an earlier one of its name, that are being deleted, by index, with their
        finalizers as a message. Their deletion triggers a look."""
        mine, taken, uids = job.metadata, dict[int, str](), self._uids(job)
        for index in range(job.group_count):
            found = self._jobs.get(mine.namespace, group_name(mine.name, index)) or {"metadata": {}}
            metadata = found["metadata"]
            group = owner_of_group(metadata)
            is_mine = metadata.get("uid") == uids.get(index)
            if group is not None and (not is_mine or metadata.get("deletionTimestamp")):
                why = held_by(metadata.get("finalizers")) if metadata.get("deletionTimestamp") else ""
                taken[index] = f"the deleted ElasticJob {metadata['name']} is {why}" if why else ""
        return taken

    def _groups_of(self, job: str, owned: Sequence[Object]) -> dict[int, ElasticJob]:
        """The job's groups by index, in ascending order; ElasticJobs with other names are left out."""
        groups: dict[int, ElasticJob] = {}
        for found in owned:
            index = index_of(job, found["metadata"]["name"])
            if index is not None and not found["metadata"].get("deletionTimestamp"):
                groups.update((index, each) for each in self._parse_job.readable([found]))
        return dict(sorted(groups.items()))

    def _paced(self, raw: Object, plan: GroupsPlan) -> tuple[GroupsPlan, float | None]:
        """The plan, without a status that only informs people and comes too soon after the last one; and the
        time until that is due."""
        if not plan.is_for_people:
            return plan, None
        written_at = self._written_at.get(raw["metadata"]["uid"])
        age_seconds = inf if written_at is None else self._clock.monotonic() - written_at
        wait = seconds_to_write(plan.status_patch, raw.get("status") or {}, age_seconds)
        return (replace(plan, status_patch={}), wait) if wait > 0 else (plan, None)

    async def _apply(self, raw: Object, plan: GroupsPlan) -> None:
        metadata = raw["metadata"]
        world = self._worlds.get(metadata["namespace"], metadata["name"])
        if not plan.status_patch and plan.is_for_people and not writes_of_world(raw, world):
            return
        raw = await self._write(raw, plan.status_patch)
        tell(self._recorder, raw, plan.events)
        with telling_refusals(self._recorder, raw):
            for act in writes_of_world(raw, world):
                await carry_out(self._client, self._recorder, raw, [act])
            await carry_out(self._client, self._recorder, raw, [*plan.refused, *plan.surplus])
        await self._renew_all(raw, plan)

    async def _renew_all(self, job: Object, plan: GroupsPlan) -> None:
        """Create or change groups. The job gets the uids of new groups even if others are refused, since
        groups without one count as false."""
        made: dict[int, str] = {}
        uid = job["metadata"]["uid"]
        try:
            with telling_refusals(self._recorder, job):
                await in_parallel(self._renew(job, index, made) for index in plan.renewed)
            if plan.held_seconds is None:
                self._refused.put(uid, ("", 0.0))
        except ApiError as error:
            if is_refusal(error):
                self._refused.put(uid, (str(error), self._clock.monotonic() + retry_seconds()))
            raise
        finally:
            if made:
                await self._write(job, {"groups": with_uids(job, made)})

    async def _write(self, raw: Object, status_patch: Object) -> Object:
        """Write the status, and return the whole stored job.

        Raises:
            Conflict: the job has changed.
        """
        written = await write_status(self._client, ELASTICJOBS, raw, status_patch)
        if status_patch:
            self._written_at.put(raw["metadata"]["uid"], self._clock.monotonic())
        return written

    async def _renew(self, job: Object, index: int, made: dict[int, str]) -> None:
        """Create a group, or change it to its desired state.

        Args:
            job: the whole job; the cache has only a part of large jobs and their groups.
            made: receives the uid of a new group.

        Raises:
            Forbidden: its name is taken by an ElasticJob of somebody else.
            Conflict: the group has changed since it was read.
        """
        wanted = group_job(job, index)
        name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
        uid = job["metadata"]["uid"]
        known = self._made.get(uid)
        if known is None:
            known = self._made.put(uid, {})
        if self._jobs.get(namespace, name) is None:
            try:
                created = await self._client.create(ELASTICJOBS, wanted)
                known[index] = made[index] = created["metadata"]["uid"]
                return
            except AlreadyExists:
                pass
        try:
            found = await self._client.get(ELASTICJOBS, name, namespace)
        except NotFound:
            return  # its deletion triggers a look
        if found["metadata"].get("deletionTimestamp"):
            return  # so will this one's
        if found["metadata"]["uid"] in (known.get(index), made_group(job, index)):
            await carry_out(self._client, self._recorder, job, [renewal(job, index, found)])
        elif uid in owner_uids(found):
            return  # a false group, which the next look deletes
        elif not is_leftover(found, wanted):  # a leftover's deletion triggers a look
            message = (
                f"the ElasticJob {name} is no group of this job: delete it, or use another name for the job"
            )
            raise Forbidden(403, "Forbidden", message)
