"""The origin of a job's count, and the merge of a scale request into desired state. Pure.

Counts arrive in the job's spec, whatever their origin. The rest of a request comes with them in an annotation
(`request.py`), and is merged into the job's status here, once, in the look that sees both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Scaling
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.refusal import PodRefusal
from reconcilers.observed.resources import is_for_amount
from reconcilers.observed.slots import (
    Migration,
    Slots,
    base_of,
    migrations_of,
    slot_count,
    slots_of,
    training_types,
    with_slots,
)
from reconcilers.observed.worker_state import current_report, runs
from reconcilers.scale.plan_resources import merged_resources
from reconcilers.scale.request import Origin, ScaleRequest, pending, written
from reconcilers.scale.rolling import Freshness

Vacant = Mapping[str, frozenset[int]]
"""Retired slots without workers and Pods, by type."""
NO_SLOTS: Vacant = {}

SPEC = "spec"
SCALE_SUBRESOURCE = "the scale subresource"


def take_up(
    job: ElasticJob,
    fresh: Freshness,
    managed_fields: Sequence[Mapping[str, Any]],
    now: datetime,
    vacant: Vacant = NO_SLOTS,
    workers: Sequence[ElasticWorker] = (),
) -> tuple[ElasticJob, ScaleRequest | None, int | None]:
    """The job with the requested scale; the request that this look merges; and the count before a change.

    Args:
        fresh: workers with outdated resources, whose moves go on whatever is requested.
        vacant: slots that may be used again.
        workers: the job's workers, of which a smaller count keeps those with a checkpoint.
    """
    request = pending(job)
    after = job if request is None else _merged(job, request, fresh, vacant)
    slots = {
        type_: _adjusted(after, type_, vacant.get(type_, frozenset())) for type_ in training_types(after)
    }
    after = with_slots(after, slots)
    scaling = _scaling(job, request, managed_fields, now)
    before = _count_before(job)
    if before is not None and (retired := _spared(after, before, workers)):
        count = slot_count(after.spec.replica_specs[names.WORKER])
        after = with_slots(after, {names.WORKER: slots_of(after, names.WORKER).without(retired, count)})
    changed = before is not None and scaling is not None and before != scaling.replicas
    return after.having(scaling=scaling), request, before if changed else None


def without_profile(job: ElasticJob, refusal: PodRefusal | None) -> ElasticJob:
    """The job without the amounts from earlier jobs' profile, if its first Pods are refused for them."""
    request = written(job)
    if refusal is None or refusal.has_begun or request is None:
        return job
    if request.origin is not Origin.PROFILE or request.id != job.status.scale_request:
        return job
    amounts = {name for each in request.resources.values() for name in (*each.limits, *each.requests)}
    if not any(is_for_amount(refusal.warning.message, name) for name in amounts):
        return job
    own = {type_: each for type_, each in job.status.resources.items() if type_ not in request.resources}
    return job.having(resources=own)


def with_sources(job: ElasticJob, sources: frozenset[int], vacant: Vacant = NO_SLOTS) -> ElasticJob:
    """The job with further training workers that others replace."""
    slots, count = slots_of(job, names.WORKER), slot_count(job.spec.replica_specs[names.WORKER])
    moving = slots.moving({*slots.moves, *sources}, count, vacant.get(names.WORKER, frozenset()))
    return with_slots(job, {names.WORKER: moving})


def with_moves_done(
    job: ElasticJob, workers: Sequence[ElasticWorker], rendezvous: Rendezvous | None
) -> tuple[ElasticJob, list[Migration]]:
    """The job after completed moves, and these moves. The world completes a move; without one, the target's
    start does."""
    moves = migrations_of(job)
    if not moves:
        return job, []
    by_slot = {(w.spec.type, w.spec.index): w for w in workers}
    is_formed = rendezvous is not None and rendezvous.phase is RendezvousPhase.FORMED
    members = set(rendezvous.members) if rendezvous is not None and is_formed else set()
    done: list[Migration] = []
    changed: dict[str, Slots] = {}
    for move in moves:
        source, target = by_slot.get((move.type, move.source)), by_slot.get((move.type, move.target))
        if target is None:
            continue
        if rendezvous is not None and _is_in_worlds(rendezvous, source, target):
            in_place = move.target in members or _stands_by(job, target, members)
            complete = in_place and move.source not in members
        else:
            complete = runs(target)
        if complete:
            done.append(move)
            changed[move.type] = changed.get(move.type, slots_of(job, move.type)).moved(move.source)
    return with_slots(job, changed) if done else job, done


def is_from_scale_subresource(managed_fields: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the worker count was last written through the scale subresource."""
    writers = [entry for entry in managed_fields if wrote_count(entry)]
    last = max(writers, key=lambda entry: str(entry.get("time", "")), default=None)
    return last is not None and last.get("subresource") == "scale"


def _merged(job: ElasticJob, request: ScaleRequest, fresh: Freshness, vacant: Vacant) -> ElasticJob:
    slots = {}
    for type_ in training_types(job):
        count = slot_count(job.spec.replica_specs[type_])
        before = slots_of(job, type_).without(request.removed.get(type_, ()), count)
        named = (*request.moved.get(type_, ()), *request.kept.get(type_, ()))
        sources = {*named, *fresh.of(type_).intersection(before.moves)}
        slots[type_] = before.moving(sources, count, vacant.get(type_, frozenset()))
    resources = dict(job.status.resources)
    for type_, asked in request.resources.items():
        if type_ in job.spec.replica_specs:
            resources[type_] = merged_resources(resources.get(type_), asked)
    return with_slots(job.having(resources=resources, scale_request=request.id), slots)


def _adjusted(job: ElasticJob, type_: str, vacant: frozenset[int]) -> Slots:
    """The type's slots for the present count. A suspended job loses all its Pods, so nothing moves."""
    spec, before = job.spec.replica_specs[type_], _count_before(job, type_)
    count = slot_count(spec)
    by = count - slot_count(spec, before) if before is not None else 0
    slots = slots_of(job, type_).grown(by, count, vacant)
    return slots.moving(() if job.stops else slots.moves, count, vacant)


def _spared(job: ElasticJob, before: int, workers: Sequence[ElasticWorker]) -> list[int]:
    """Return the slots to retire in place of later ones that a smaller count would remove.

    While there is no world, the memory of its members may have the only copies of its newest step. So workers
    with a newer checkpoint stay in place of those with an older one or none. Places in units and needed
    workers of a job with extra ones depend on the order of slots, which is kept there.
    """
    spec, world = job.spec.replica_specs[names.WORKER], job.status.world
    is_free = job.spec.elastic_policy.node_unit == 1 and base_of(job) is None and not job.stops
    if spec.replicas >= before or world.phase is not RendezvousPhase.REFORMING or not is_free:
        return []
    slots, count = slots_of(job, names.WORKER).wanted(slot_count(spec, before)), slot_count(spec)
    steps = {w.spec.index: step for w in workers if (step := _step_in_memory(w)) is not None}
    kept = frozenset(sorted(slots, key=lambda index: -steps.get(index, -1))[:count])
    return [index for index in slots if index < max(kept, default=0) and index not in kept]


def _step_in_memory(worker: ElasticWorker) -> int | None:
    """The step of the newest checkpoint in the memory of a training worker's Pod."""
    report = current_report(worker) if worker.spec.type == names.WORKER and runs(worker) else None
    return None if report is None or report.memory is None else report.memory.step


def _count_before(job: ElasticJob, type_: str = names.WORKER) -> int | None:
    """The count of the last look; for workers the requested one, of which a queue may grant fewer."""
    if type_ == names.WORKER and job.status.scaling is not None:
        return job.status.scaling.replicas
    known = job.status.replica_statuses.get(type_)
    return known.desired if known is not None else None


def _scaling(
    job: ElasticJob, request: ScaleRequest | None, managed_fields: Sequence[Mapping[str, Any]], now: datetime
) -> Scaling | None:
    """The count and its origin.

    Args:
        request: the request that this look merges. It may have the job's present count with another `base`;
            and an edit may have followed it already.
    """
    worker, known = job.spec.replica_specs.get(names.WORKER), job.status.scaling
    is_asked = request is not None and names.WORKER in request.replicas
    if worker is None or (known is not None and known.replicas == worker.replicas and not is_asked):
        if known is None or request is None or request.base is None:
            return known
        return known.model_copy(update={"base": request.base})
    if request is not None and request.replicas.get(names.WORKER) != worker.replicas:
        request = None
    by = SCALE_SUBRESOURCE if is_from_scale_subresource(managed_fields) else SPEC
    if request is None:
        return Scaling(replicas=worker.replicas, by=by, at=now)
    return Scaling(replicas=worker.replicas, by=request.by, at=now, base=request.base)


def _stands_by(job: ElasticJob, worker: ElasticWorker, members: Collection[int]) -> bool:
    """Whether a target has become a standby: it could train, but another standby has taken its place."""
    is_complete = len(members) >= job.spec.replica_specs[worker.spec.type].replicas
    return is_complete and current_report(worker) is not None


def _is_in_worlds(rendezvous: Rendezvous, source: ElasticWorker | None, target: ElasticWorker) -> bool:
    if target.spec.type != names.WORKER:
        return False
    formed_once = rendezvous.phase is not RendezvousPhase.FORMING
    pair = (worker for worker in (source, target) if worker is not None)
    return formed_once or any(current_report(worker) is not None for worker in pair)


def wrote_count(entry: Mapping[str, Any]) -> bool:
    """Whether the manager of this entry of `managedFields` owns the count of workers."""
    fields = entry.get("fieldsV1") or {}
    for key in ("f:spec", "f:replicaSpecs", f"f:{names.WORKER}", "f:replicas"):
        if key not in fields:
            return False
        fields = fields[key]
    return True
