"""Worker count that a job's shard sets have work for (`elasticPolicy.shardScaling`, docs/shards.md). Pure.

What is decided here becomes a scale request of the job's own, which keeps within the job's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.intervals import common, count, minus
from crds.job_spec import ReplicaSpec, ShardScaling
from reconcilers.observed.slots import wanted_slots
from reconcilers.scale.request import MAX_REMOVED
from reconcilers.shards.sets import Hearing, ShardSet, of_status


@dataclass(frozen=True)
class Scale:
    """A count of workers that is not the job's."""

    replicas: int
    removed: tuple[int, ...] = ()
    """Slots that leave, where the count is smaller."""


@dataclass(frozen=True)
class Sizing:
    scale: Scale | None = None
    look_again_seconds: float | None = None
    """Until a worker has been idle for long enough."""


def scaling_of(job: ElasticJob) -> tuple[ShardScaling, ReplicaSpec] | None:
    """What the job says of it, if it asks for it."""
    policy, worker = job.spec.elastic_policy.shard_scaling, job.spec.replica_specs.get(names.WORKER)
    if policy is None or worker is None or worker.auto_scale is False:
        return None
    return policy, worker


def limits_of(worker: ReplicaSpec, unit: int) -> tuple[int, int]:
    """The least and the most workers, in whole units."""
    most = (worker.max_replicas or worker.replicas) // unit * unit
    least = -(-(worker.min_replicas or 1) // unit) * unit
    return min(least, most), most


def workers_for(elements: int, policy: ShardScaling, worker: ReplicaSpec, unit: int) -> int:
    """How many workers so many elements keep busy, within what the job allows."""
    least, most = limits_of(worker, unit)
    needed = -(-elements // policy.slots_per_worker)
    return max(least, min(-(-needed // unit) * unit, most))


def expected_workers(job: ElasticJob, sets: Sequence[ShardSet], workers: Iterable[ElasticWorker]) -> int:
    """How many are to share what is left, though some are yet to come; 0 where the job does not say."""
    found = scaling_of(job)
    if found is None:
        return 0
    unit = job.spec.elastic_policy.node_unit
    if not sets:
        return limits_of(found[1], unit)[1]
    return workers_for(left_of(sets, workers), *found, unit)


def holders_of(job: ElasticJob) -> frozenset[tuple[int, int]]:
    """Index and incarnation of the workers that hold a lease."""
    sets = map(of_status, job.status.shards)
    return frozenset((lease.worker, lease.incarnation) for each in sets for lease in each.leases)


def size_of(job: ElasticJob, workers: Iterable[ElasticWorker], idle_seconds: Mapping[str, float]) -> Sizing:
    """The count that the work asks for, if it is not the job's own.

    More come at once. Who goes holds no lease by now, and had held none for `idleSeconds`: nothing that is
    under way is lost by it.

    Args:
        idle_seconds: how long each of those that hold no lease has held none, by uid.
    """
    found = scaling_of(job)
    if found is None or not job.status.shards:
        return Sizing()
    policy, worker = found
    sets = tuple(map(of_status, job.status.shards))
    workers, unit = tuple(workers), job.spec.elastic_policy.node_unit
    wanted = workers_for(left_of(sets, workers), policy, worker, unit)
    if wanted >= worker.replicas:
        return Sizing(Scale(wanted) if wanted > worker.replicas else None)
    slots, holders = set(wanted_slots(job, names.WORKER)), holders_of(job)
    idle = sorted(
        (
            (each.spec.index, idle_seconds[each.metadata.uid])
            for each in workers
            if each.metadata.uid in idle_seconds
            and each.spec.index in slots
            and (each.spec.index, each.spec.incarnation) not in holders  # this look may have leased to it
        ),
        reverse=True,
    )
    long_idle = [index for index, seconds in idle if seconds >= policy.idle_seconds]
    number = min(worker.replicas - wanted, len(long_idle), MAX_REMOVED) // unit * unit
    waits = [policy.idle_seconds - seconds for _, seconds in idle if seconds < policy.idle_seconds]
    if not number:
        return Sizing(look_again_seconds=min(waits, default=None))
    return Sizing(Scale(worker.replicas - number, tuple(sorted(long_idle[:number]))))


def left_of(sets: Iterable[ShardSet], workers: Iterable[ElasticWorker]) -> int:
    """How many elements are not done, as far as workers have said."""
    hearing = Hearing()
    voices = {
        (voice.definition, voice.worker, voice.incarnation, voice.lease): voice
        for worker in workers
        for voice in hearing.voices_of(worker)
    }
    left = 0
    for each in sets:
        left += count(each.waiting) + each.to_try_again
        for lease in each.leases:
            voice = voices.get((each.definition, lease.worker, lease.incarnation, lease.number))
            rest = lease.elements
            if voice is not None:
                rest = common(rest, voice.rest)
                left += count(minus(voice.failed, rest))
            left += count(rest)
    return left
