"""As many workers as a job's shard sets have work for (`elasticPolicy.shardScaling`, docs/tasks.md). Pure.

What is decided here becomes an automatic ScalePlan, as anybody could make one: so it keeps within the job's
limits, is told in its history, and ends where other plans end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.resources import SCALEPLANS, Object
from crds import names
from crds.elasticjob import ElasticJob, ReplicaSpec, ShardScaling
from crds.elasticworker import ElasticWorker
from crds.intervals import common, count, minus
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.acts import Act, create
from reconcilers.job.acts import deleted
from reconcilers.pod.builder import owner_reference
from reconcilers.scale.plan import AUTO, LABEL_SCALE_TYPE
from reconcilers.scale.uptake import Plans
from reconcilers.shards.sets import ShardSet, of_status
from reconcilers.shards.voices import voices_of
from reconcilers.world.slots import wanted_slots

MAX_REMOVED = 1_000
"""What a ScalePlan can name; the rest goes with the next."""


@dataclass(frozen=True)
class Scale:
    """A count of workers that is not the job's."""

    replicas: int
    removed: tuple[int, ...] = ()
    """The slots that go, of a smaller one."""


@dataclass(frozen=True)
class Decision:
    scale: Scale | None = None
    look_again_seconds: float | None = None
    """Until a worker has been idle for long enough."""


def scaling_of(job: ElasticJob) -> tuple[ShardScaling, ReplicaSpec] | None:
    """What the job says of it, if it asks for it."""
    policy, worker = job.spec.elastic_policy.shard_scaling, job.spec.replica_specs.get(names.WORKER)
    if policy is None or worker is None or worker.auto_scale is False:
        return None
    return policy, worker


def bounds_of(worker: ReplicaSpec, unit: int) -> tuple[int, int]:
    """The least and the most workers, in whole units."""
    most = (worker.max_replicas or worker.replicas) // unit * unit
    least = -(-(worker.min_replicas or 1) // unit) * unit
    return min(least, most), most


def workers_for(elements: int, policy: ShardScaling, worker: ReplicaSpec, unit: int) -> int:
    """How many workers so many elements keep busy, within what the job allows."""
    least, most = bounds_of(worker, unit)
    needed = -(-elements // policy.slots_per_worker)
    return max(least, min(-(-needed // unit) * unit, most))


def expected_workers(job: ElasticJob, sets: Sequence[ShardSet], workers: Iterable[ElasticWorker]) -> int:
    """How many are to share what is left, though some are yet to come; 0 where the job does not say."""
    found = scaling_of(job)
    if found is None:
        return 0
    unit = job.spec.elastic_policy.node_unit
    if not sets:
        return bounds_of(found[1], unit)[1]
    return workers_for(left_of(sets, workers), *found, unit)


def holders_of(job: ElasticJob) -> frozenset[tuple[int, int]]:
    """Index and incarnation of the workers that hold a lease."""
    sets = map(of_status, job.status.shards)
    return frozenset((lease.worker, lease.incarnation) for each in sets for lease in each.leases)


def decide(job: ElasticJob, workers: Iterable[ElasticWorker], idle_seconds: Mapping[str, float]) -> Decision:
    """The count that the work asks for, if it is not the job's own.

    More come at once. Who goes holds no lease, and has held none for `idleSeconds`: nothing that is under way
    is lost by it.

    Args:
        workers: the job's training workers.
        idle_seconds: how long each of those that hold no lease has held none, by uid.
    """
    found = scaling_of(job)
    if found is None or not job.status.shards:
        return Decision()
    policy, worker = found
    sets = tuple(map(of_status, job.status.shards))
    workers, unit = tuple(workers), job.spec.elastic_policy.node_unit
    wanted = workers_for(left_of(sets, workers), policy, worker, unit)
    if wanted >= worker.replicas:
        return Decision(Scale(wanted) if wanted > worker.replicas else None)
    slots = set(wanted_slots(job, names.WORKER))
    idle = sorted(
        (
            (each.spec.index, idle_seconds[each.metadata.uid])
            for each in workers
            if each.metadata.uid in idle_seconds and each.spec.index in slots
        ),
        reverse=True,
    )
    long_idle = [index for index, seconds in idle if seconds >= policy.idle_seconds]
    number = min(worker.replicas - wanted, len(long_idle), MAX_REMOVED) // unit * unit
    waits = [policy.idle_seconds - seconds for _, seconds in idle if seconds < policy.idle_seconds]
    if not number:
        return Decision(look_again_seconds=min(waits, default=None))
    return Decision(Scale(worker.replicas - number, tuple(sorted(long_idle[:number]))))


def left_of(sets: Iterable[ShardSet], workers: Iterable[ElasticWorker]) -> int:
    """How many elements are not done, as far as workers have said."""
    voices = {
        (voice.definition, voice.worker, voice.incarnation, voice.lease): voice
        for worker in workers
        for voice in voices_of(worker)
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


def acts(job: ElasticJob, scale: Scale, plans: Plans) -> tuple[Act, ...]:
    """The plan that asks for it, one for each generation of the job; and those that are over go.

    Somebody else's plan that has yet to begin comes first: a newer one would end it. What was refused is not
    asked for again.

    Args:
        plans: the job's.
    """
    if _waits(job, plans.newest):
        return ()
    asked = _asked(job, scale)
    name = asked["metadata"]["name"]
    same = next((each for each in plans.spent if each.metadata.name == name), None)
    kept = same if same is not None and _was_refused(same, scale) else None
    over = tuple(deleted(SCALEPLANS, each.metadata) for each in plans.spent if each is not kept)
    under_way = plans.newest is not None and plans.newest.metadata.name == name
    return over if same is not None or under_way else (create(SCALEPLANS, asked), *over)


def _waits(job: ElasticJob, newest: ScalePlan | None) -> bool:
    """Whether somebody has asked for something that the job has not taken over yet."""
    return newest is not None and not is_ours(newest) and job.status.scale_plan_uid != newest.metadata.uid


def _was_refused(plan: ScalePlan, scale: Scale) -> bool:
    """Whether it asked for the same, and was refused."""
    asked = plan.spec.replica_resource_specs.get(names.WORKER)
    removed = tuple(pod.rank_index for pod in plan.spec.remove_pods)
    same = asked is not None and (asked.replicas, removed) == (scale.replicas, scale.removed)
    return same and plan.status.phase is ScalePlanPhase.FAILED


def _asked(job: ElasticJob, scale: Scale) -> Object:
    metadata = job.metadata
    asked: Object = {"replicaResourceSpecs": {names.WORKER: {"replicas": scale.replicas}}}
    if scale.removed:
        asked["removePods"] = [{"type": names.WORKER, "rankIndex": index} for index in scale.removed]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {
            "name": f"{metadata.name}-shards-{metadata.generation}",
            "namespace": metadata.namespace,
            "labels": {
                names.LABEL_APP: names.APP,
                names.LABEL_JOB: metadata.name,
                names.LABEL_MANAGED_BY: names.MANAGER,
                LABEL_SCALE_TYPE: AUTO,
            },
            "ownerReferences": [owner_reference("ElasticJob", metadata.name, metadata.uid)],
        },
        "spec": {"ownerJob": metadata.name, **asked},
    }


def is_ours(plan: ScalePlan) -> bool:
    """Whether it was made here."""
    return plan.metadata.labels.get(names.LABEL_MANAGED_BY) == names.MANAGER
