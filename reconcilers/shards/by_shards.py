"""Number of workers that a job's shard sets need (`elasticPolicy.shardScaling`, docs/shards.md). Pure.

The result becomes a scale request of the job's own, within the job's limits.
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
from reconcilers.shards.sets import PullReport, SetState


@dataclass(frozen=True)
class Sizing:
    replicas: int | None = None
    """New number of workers; None if it stays."""
    removed: tuple[int, ...] = ()
    """Slots that leave, if the number is smaller."""
    look_again_seconds: float | None = None
    """Time until a worker has been idle for long enough."""


@dataclass(frozen=True)
class IdleWorker:
    """A worker without a lease."""

    index: int
    incarnation: int
    seconds: float
    """Time for which it has had none."""


def scaling_of(job: ElasticJob) -> tuple[ShardScaling, ReplicaSpec] | None:
    """The job's policy with the spec of its workers; None if it does not scale by shards."""
    policy, worker = job.spec.elastic_policy.shard_scaling, job.spec.replica_specs.get(names.WORKER)
    if policy is None or worker is None or worker.auto_scale is False:
        return None
    return policy, worker


def limits_of(worker: ReplicaSpec, unit: int) -> tuple[int, int]:
    """The minimum and maximum of workers, in whole units."""
    most = (worker.max_replicas or worker.replicas) // unit * unit
    least = -(-(worker.min_replicas or 1) // unit) * unit
    return min(least, most), most


def workers_for(elements: int, policy: ShardScaling, worker: ReplicaSpec, unit: int) -> int:
    """Number of workers that these elements keep busy, within the job's limits."""
    least, most = limits_of(worker, unit)
    needed = -(-elements // policy.slots_per_worker)
    return max(least, min(-(-needed // unit) * unit, most))


def expected_workers(job: ElasticJob, sets: Sequence[SetState], reports: Iterable[PullReport]) -> int:
    """Number of workers that will share the remaining elements, some of which may not exist yet; 0 if the job
    does not scale by shards."""
    found = scaling_of(job)
    if found is None:
        return 0
    unit = job.spec.elastic_policy.node_unit
    if not sets:
        return limits_of(found[1], unit)[1]
    return workers_for(left_of(sets, reports), *found, unit)


def holders_of(sets: Iterable[SetState]) -> frozenset[tuple[int, int]]:
    """Numbers and incarnations of the workers with a lease."""
    return frozenset((lease.worker, lease.incarnation) for each in sets for lease in each.leases)


def size_of(
    job: ElasticJob, sets: Sequence[SetState], reports: Iterable[PullReport], idle: Iterable[IdleWorker]
) -> Sizing:
    """The number of workers that the work needs, if it is not the job's own.

    More workers come at once. A worker goes only if it has had no lease for `idleSeconds`, and has none now,
    so that no work is lost.

    Args:
        sets: the sets after this look, which may have leased to idle workers.
    """
    found = scaling_of(job)
    if found is None or not sets:
        return Sizing()
    policy, worker = found
    unit = job.spec.elastic_policy.node_unit
    wanted = workers_for(left_of(sets, reports), policy, worker, unit)
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


def left_of(sets: Iterable[SetState], reports: Iterable[PullReport]) -> int:
    """Number of elements that are not done, by the workers' reports."""
    by_lease = {
        (each.definition, each.worker, each.incarnation, each.lease, each.uid): each for each in reports
    }
    left = 0
    for each in sets:
        left += count(each.waiting) + each.to_try_again
        for lease in each.leases:
            report = by_lease.get((each.definition, lease.worker, lease.incarnation, lease.number, each.uid))
            rest = lease.elements
            if report is not None:
                rest = common(rest, report.rest)
                left += count(minus(report.failed, rest))
            left += count(rest)
    return left
