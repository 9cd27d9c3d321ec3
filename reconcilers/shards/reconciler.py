"""The reconciler of a job's shard sets: it observes, plans and writes.

Each ShardSet is written with the resourceVersion from which its leases were decided. The job's conditions and
scale request follow from the stored ShardSets, so a look after a crash writes what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from controller.errors import Conflict
from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed, let_go
from controller.store import Change
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped, worker_number
from crds.leases import holder_number
from crds.shard_set import MAX_SHARD_SETS, names_of_sets, object_name
from crds.shard_set_status import ShardSetStatus
from reconcilers.observed.builder import owned_metadata
from reconcilers.observed.groups import group_of
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import (
    BY_OWNER,
    ensure,
    in_namespace,
    number_label,
    staying,
    workers_owned_by,
)
from reconcilers.runtime.acts import tell, telling_refusals, write_status
from reconcilers.runtime.kinds import ELASTICJOBS, SHARDSETS
from reconcilers.runtime.tools import Tools, WithTools
from reconcilers.scale.writer import ScaleWriter
from reconcilers.shards.by_shards import IdleWorker, holders_of, scaling_of
from reconcilers.shards.plan import SetWrite, ShardsPlan, ShardsSeen, StoredSet, plan_shards
from reconcilers.shards.sets import Puller, look_size, of_status

BY_PULLED_JOB = "pulled job"
"""Index of ElasticWorkers whose agents have reported shard sets, by `owners_of_pullers`."""
LEFTOVER_RETRY_SECONDS = 1.0
"""Time between two tries while garbage collection has to delete an earlier job's ShardSet."""
_STATUS: TypeAdapter[ShardSetStatus] = TypeAdapter(ShardSetStatus)


@dataclass(frozen=True)
class _Found:
    """The objects in the cache for one look."""

    job: ElasticJob
    sets: Sequence[Object]
    pulling: Sequence[tuple[Object, int | None, bool]]
    """Workers that have reported sets, with their group's index, and whether they get no more leases."""
    idle: Sequence[Object]
    """All workers of the job that stay, if it scales by shards."""


class ShardsReconciler(WithTools):
    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._sets = tools.cache.store(SHARDSETS)
        self._scale = ScaleWriter(tools)
        self._leased = Observations(self._jobs, tools.clock.monotonic)
        self._idle = Observations(self._workers, tools.clock.monotonic)
        self._deleted: defaultdict[Request, dict[str, Object]] = defaultdict(dict)
        """Workers that were deleted since the last look at their job, by uid. The work in their last reports
        is done once more if the controller crashes before the next look."""

    def note_deletion(self, change: Change) -> None:
        """Keep the report of a deleted worker until the next look at its job."""
        if change.new is None and change.old is not None and owners_of_pullers(change.old):
            for request in job_of_puller(change.old):
                self._deleted[request][change.old["metadata"]["uid"]] = change.old

    async def reconcile(self, request: Request) -> Result:
        gone = self._deleted.pop(request, {})
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp") or group_of(raw) is not None:
            return Result()  # garbage collection deletes the sets of a deleted job
        found = self._find(raw, gone.values())
        if not (found.sets or found.pulling):
            return Result()
        try:
            return await self._look(raw, found)
        except BaseException:
            self._deleted[request] |= gone
            raise

    async def _look(self, raw: Object, found: _Found) -> Result:
        size = look_size([worker for worker, *_ in found.pulling], found.sets) + len(found.idle)
        seen = await computed(size, self._see, found)
        plan = await computed(size, plan_shards, seen, self._clock.now())
        await let_go(list(seen.pullers))
        for write in plan.sets:
            await self._write_set(raw, found.sets, write)
        tell(self._recorder, raw, plan.events)
        return await self._conclude(raw, seen, plan)

    def _find(self, raw: Object, gone: Iterable[Object]) -> _Found:
        job = self._parse_job.parse(raw)
        namespace, uid = job.metadata.namespace, job.metadata.uid
        sets = [each for each in self._sets_of(job) if not each["metadata"].get("deletionTimestamp")]
        groups = {each.uid: each for each in job.status.groups} if is_grouped(raw) else {uid: None}
        pulling: list[tuple[Object, int | None, bool]] = [(each, _group_index(each), True) for each in gone]
        for owner, group in groups.items():
            is_over = group is not None and bool(group.phase and group.phase.finished)
            is_surplus = group is not None and group.index >= job.group_count
            for each in in_namespace(self._workers.by_index(BY_PULLED_JOB, owner), namespace):
                goes = is_over or is_surplus or bool(each["metadata"].get("deletionTimestamp"))
                pulling.append((each, None if group is None else group.index, goes))
        follows = scaling_of(job) is not None and sets
        idle = staying(workers_owned_by(self._workers, namespace, uid)) if follows else ()
        return _Found(job, sets, pulling, list(idle))

    def _sets_of(self, job: ElasticJob) -> list[Object]:
        """The job's ShardSets in the order of their numbers."""
        owned = in_namespace(self._sets.by_index(BY_OWNER, job.metadata.uid), job.metadata.namespace)
        by_name = {each["metadata"]["name"]: each for each in owned}
        return [by_name[name] for name in names_of_sets(job.metadata.name) if name in by_name]

    def _see(self, found: _Found) -> ShardsSeen:
        job, sets = found.job, [stored_set(each) for each in found.sets]
        leases = tuple(
            (each.state.definition.name, each.state.definition.epoch, each.state.last_lease)
            for each in sets
            if each.state is not None
        )
        age_seconds = self._leased.age_seconds(job.metadata.uid, leases) if leases else float("inf")
        pullers = [
            Puller(_number_of(worker, group), worker, goes)
            for raw, group, goes in found.pulling
            if (worker := self._parse_worker.parse_or_none(raw)) is not None
        ]
        idle, refused = list(self._idle_of(found.idle, sets)), self._scale.refused(job)
        return ShardsSeen(job, sets, pullers, idle, age_seconds, refused)

    def _idle_of(self, workers: Iterable[Object], sets: Iterable[StoredSet]) -> Iterator[IdleWorker]:
        holders = holders_of(each.state for each in sets if each.state is not None)
        for raw in workers:
            spec, uid = raw["spec"], raw["metadata"]["uid"]
            holds = (spec["index"], spec["incarnation"]) in holders
            seconds = self._idle.age_seconds(uid, holds)
            if spec["type"] == names.WORKER and not holds:
                yield IdleWorker(spec["index"], spec["incarnation"], seconds)

    async def _write_set(self, job: Object, there: Sequence[Object], write: SetWrite) -> None:
        """Create the ShardSet, if there is none, and write its status.

        Raises:
            Conflict: it has changed.
            Leftover: an earlier job's ShardSet of that name still exists.
            Forbidden: another owner's ShardSet has that name.
        """
        if (stored := write.stored) is not None:
            kept = next(each for each in there if each["metadata"]["uid"] == stored.uid)
        else:
            taken = {each["metadata"]["name"] for each in there}
            wanted = new_set(job, write.state.definition.name, taken)
            with telling_refusals(self._recorder, job):
                kept = await ensure(self._client, SHARDSETS, wanted)
            if kept.get("status") or kept["spec"] != wanted["spec"]:
                name = kept["metadata"]["name"]
                raise Conflict(409, "Conflict", f"the cache has yet to show the ShardSet {name}")
        await write_status(self._client, SHARDSETS, kept, write.patch)

    async def _conclude(self, raw: Object, seen: ShardsSeen, plan: ShardsPlan) -> Result:
        """Write the job's conditions and scale request."""
        version = raw["metadata"]["resourceVersion"]
        if plan.conditions:
            status = {"conditions": [each.to_wire() for each in plan.conditions]}
            written = await write_status(self._client, ELASTICJOBS, raw, status)
            version = written["metadata"]["resourceVersion"]
        if plan.scale is not None and not await self._scale.write(seen.job, raw, version, plan.scale):
            return Result(0.0)  # it was refused, and the next look decides when to repeat it
        return Result(plan.look_again_seconds)


def new_set(job: Object, set_name: str, taken: Iterable[str]) -> Object:
    """The ShardSet to create, with the first free number.

    Args:
        taken: names of the job's other ShardSets.
    """
    name_of_job = job["metadata"]["name"]
    free = (number for number in range(MAX_SHARD_SETS) if object_name(name_of_job, number) not in set(taken))
    metadata = owned_metadata(job, object_name(name_of_job, next(free)))
    metadata["labels"] |= {names.LABEL_JOB_UID: job["metadata"]["uid"]}
    return SHARDSETS.manifest(metadata, spec={"jobName": name_of_job, "setName": set_name})


def owners_of_pullers(worker: Object) -> list[str]:
    """Index function: the owner of a worker whose agent has reported a shard set."""
    pulls = ((worker.get("status") or {}).get("agent") or {}).get("shards")
    return [owner["uid"] for owner in worker["metadata"].get("ownerReferences") or () if pulls]


def job_of_puller(worker: Object) -> Iterable[Request]:
    """The job whose sets a worker pulls from; for a replica group, the job that owns the group."""
    metadata = worker["metadata"]
    name = (metadata.get("labels") or {}).get(names.LABEL_GROUPED_JOB) or worker["spec"].get("jobName")
    return [Request(metadata["namespace"], name)] if name else []


def _group_index(worker: Object) -> int | None:
    return number_label(worker, names.LABEL_GROUP_INDEX)


def _number_of(worker: ElasticWorker, group: int | None) -> int:
    number = holder_number(worker.spec.type, worker.spec.index)
    return number if group is None else worker_number(group, number)


def stored_set(raw: Object) -> StoredSet:
    """Read a ShardSet.

    Raises:
        ValueError: its status is malformed.
    """
    uid, status = raw["metadata"]["uid"], raw.get("status") or {}
    state = of_status(_STATUS.validate_python(status), uid) if status else None
    return StoredSet(raw["spec"]["setName"], uid, status, state)
