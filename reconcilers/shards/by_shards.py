"""Worker count that a job's shard sets have work for (`elasticPolicy.shardScaling`, docs/shards.md). Pure.

What is decided here becomes a scale request of the job's own, which keeps within the job's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crds import names
from crds.elasticjob import ElasticJob
from crds.intervals import common, count, minus
from crds.job_spec import ReplicaSpec, ShardScaling
from reconcilers.observed.slots import wanted_slots
from reconcilers.scale.request import MAX_REMOVED
from reconcilers.shards.sets import SetState, Voice


@dataclass(frozen=True)
class Sizing:
    replicas: int | None = None
    """A count of workers that is not the job's."""
    removed: tuple[int, ...] = ()
    """Slots that leave, where the count is smaller."""
    look_again_seconds: float | None = None
    """Until a worker has been idle for long enough."""


@dataclass(frozen=True)
class IdleWorker:
    """A worker that holds no lease."""

    index: int
    incarnation: int
    seconds: float
    """Time for which it has held none."""


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


def expected_workers(job: ElasticJob, sets: Sequence[SetState], voices: Iterable[Voice]) -> int:
    """How many are to share what is left, though some are yet to come; 0 where the job does not say."""
    found = scaling_of(job)
    if found is None:
        return 0
    unit = job.spec.elastic_policy.node_unit
    if not sets:
        return limits_of(found[1], unit)[1]
    return workers_for(left_of(sets, voices), *found, unit)


def holders_of(sets: Iterable[SetState]) -> frozenset[tuple[int, int]]:
    """Number and incarnation of the workers that hold a lease."""
    return frozenset((lease.worker, lease.incarnation) for each in sets for lease in each.leases)


def size_of(
    job: ElasticJob, sets: Sequence[SetState], voices: Iterable[Voice], idle: Iterable[IdleWorker]
) -> Sizing:
    """The count that the work asks for, if it is not the job's own.

    More come at once. Who goes holds no lease by now, and had held none for `idleSeconds`: nothing that is
    under way is lost by it.

    Args:
        sets: as they are after this look, which may have leased to some of the idle.
    """
    found = scaling_of(job)
    if found is None or not sets:
        return Sizing()
    policy, worker = found
    unit = job.spec.elastic_policy.node_unit
    wanted = workers_for(left_of(sets, voices), policy, worker, unit)
    if wanted >= worker.replicas:
        return Sizing(wanted if wanted > worker.replicas else None)
    slots, holders = set(wanted_slots(job, names.WORKER)), holders_of(sets)
    waiting = [each for each in idle if each.index in slots and (each.index, each.incarnation) not in holders]
    long_idle = sorted((each.index for each in waiting if each.seconds >= policy.idle_seconds), reverse=True)
    number = min(worker.replicas - wanted, len(long_idle), MAX_REMOVED) // unit * unit
    waits = [policy.idle_seconds - each.seconds for each in waiting if each.seconds < policy.idle_seconds]
    if not number:
        return Sizing(look_again_seconds=min(waits, default=None))
    return Sizing(worker.replicas - number, tuple(sorted(long_idle[:number])))


def left_of(sets: Iterable[SetState], voices: Iterable[Voice]) -> int:
    """How many elements are not done, as far as workers have said."""
    said = {(each.definition, each.worker, each.incarnation, each.lease, each.uid): each for each in voices}
    left = 0
    for each in sets:
        left += count(each.waiting) + each.to_try_again
        for lease in each.leases:
            voice = said.get((each.definition, lease.worker, lease.incarnation, lease.number, each.uid))
            rest = lease.elements
            if voice is not None:
                rest = common(rest, voice.rest)
                left += count(minus(voice.failed, rest))
            left += count(rest)
    return left
