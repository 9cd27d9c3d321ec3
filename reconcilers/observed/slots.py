"""The slots of a replica type: the first that are not retired, as many as `replicas` and `standby` together.

A slot that moves (`status.migrations`) stays wanted until its target, an additional slot, has taken its
place; then it is retired. A retired slot is vacant once it has no ElasticWorker, Pod or place in the world.
Vacant slots are reused: as targets at once, for a larger count only when many are retired, because the
workers behind them change rank. The last part of this module is about extra workers, which have the highest
slots: `status.scaling.base` is the number of needed workers, and no world waits for the others.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.wording import some_of
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_spec import Opportunistic, ReplicaSpec
from crds.job_status import Moves
from crds.phases import RendezvousPhase

Slot = tuple[str, int]
"""Type and index."""

FEW_RETIRED = 16
"""Retired slots, or a quarter of all slots if that is more, that a larger count does not reuse."""
NAMED_WORKERS = 5
"""Most workers named in a message; the others are counted."""
_NO_MOVES = Moves()


def named(workers: Collection[int]) -> str:
    """Return a phrase such as `workers 0, 1, 2 and 4 more`."""
    indices = some_of([str(index) for index in sorted(workers)], NAMED_WORKERS)
    return f"worker{'s' if len(workers) > 1 else ''} {indices}"


def wanted(count: int, retired: Collection[int]) -> tuple[int, ...]:
    """Return the first `count` indices that are not retired."""
    gone = retired if isinstance(retired, set | frozenset) else frozenset(retired)
    return tuple(itertools.islice(itertools.filterfalse(gone.__contains__, itertools.count()), count))


@dataclass(frozen=True)
class Migration:
    """A slot that takes another's place, once it is up."""

    type: str
    source: int
    target: int


@dataclass(frozen=True)
class Slots:
    """Slots of one type, as the status has them."""

    retired: frozenset[int] = frozenset()
    moves: Mapping[int, int] = field(default_factory=dict)
    """Target by source; both ascend."""

    def wanted(self, count: int) -> tuple[int, ...]:
        return wanted(count, self.retired.union(self.moves.values()))

    def present(self, count: int) -> tuple[int, ...]:
        """Return the slots that should exist: the wanted ones and the targets."""
        wanted = self.wanted(count)
        return tuple(sorted({*wanted, *self.moves.values()})) if self.moves else wanted

    def moved(self, source: int) -> Slots:
        """Return the slots after the target has taken its source's place."""
        moves = {s: t for s, t in self.moves.items() if s != source}
        return Slots(self.retired | {source}, moves)

    def without(self, indices: Iterable[int], count: int) -> Slots:
        """Return the slots after some were removed for good; `count` is the new count."""
        return replace(self, retired=self.retired.union(indices)).moving(self.moves, count)

    def grown(self, by: int, count: int, vacant: Collection[int]) -> Slots:
        """Reuse vacant slots for some of those that a larger count adds.

        Args:
            by: number of added slots.
        """
        number = min(by, len(self.retired) - max(FEW_RETIRED, count // 4))
        return (
            self if number <= 0 else replace(self, retired=self.retired.difference(sorted(vacant)[:number]))
        )

    def moving(self, sources: Collection[int], count: int, vacant: Collection[int] = ()) -> Slots:
        """Move exactly these, as far as they are wanted; moves under way go on.

        An abandoned target is retired if slots behind it are in use, so that it does not replace one of them.

        Args:
            vacant: vacant slots, which become targets before slots that were never used.
        """
        if not (sources or self.moves or self.retired):
            return self  # most jobs, in each reconcile
        present = self.wanted(count)
        asked = sorted({*sources}.intersection(present))
        kept = {self.moves[s] for s in asked if s in self.moves}
        abandoned = {*self.moves.values()} - kept
        last = max((*present, *kept), default=0)
        final = wanted(count, self.retired.union(asked, (t for t in abandoned if t < last)))
        kept.intersection_update(final)
        unused = sorted({*final}.difference(present, kept))
        new = itertools.chain(sorted(self.retired.intersection(vacant)), unused)
        targets = sorted({*kept, *itertools.islice(new, len(asked) - len(kept))})
        in_use = {*present, *targets}
        last = max(in_use, default=-1)
        forgotten = (index for index in vacant if index > last)
        retired = self.retired.union(range(last)).difference(in_use, forgotten)
        return Slots(retired, dict(zip(asked, targets, strict=True)))


def slots_of(job: ElasticJob, type_: str) -> Slots:
    moves = job.status.migrations.get(type_, _NO_MOVES)
    retired = frozenset(job.status.retired.get(type_, ()))
    return Slots(retired, dict(zip(moves.sources, moves.targets, strict=True)))


def migrations_of(job: ElasticJob) -> list[Migration]:
    return [
        Migration(t, s, target) for t in job.status.migrations for s, target in slots_of(job, t).moves.items()
    ]


def vacant_slots(job: ElasticJob, there: Collection[Slot]) -> dict[str, frozenset[int]]:
    """Return the vacant slots, by type.

    In a job with extra workers, these are only slots behind the needed workers: a new worker before them
    would turn one that has a Pod of full priority into an extra worker.

    Args:
        job: as published: slots that are retired from now on are not vacant yet.
        there: the slots of its ElasticWorkers and Pods, including those that are being deleted.
    """
    world = job.status.rendezvous
    members = world.members if world is not None and world.phase is not RendezvousPhase.FORMING else ()
    left = {*there, *((names.WORKER, index) for index in members)}
    base = base_of(job)
    before = wanted_slots(job, names.WORKER)[:base] if base is not None else ()
    last = max(before, default=-1)
    return {
        type_: frozenset(
            index
            for index in retired
            if (type_, index) not in left and (type_ != names.WORKER or index > last)
        )
        for type_, retired in job.status.retired.items()
    }


def wanted_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """Return the wanted slots of a type; empty if the job does not have the type."""
    return slots_of(job, type_).wanted(_slot_count(job, type_))


def place_of(job: ElasticJob, type_: str, index: int) -> int | None:
    """Return the place of a slot in `wanted_slots`, without making them all; None if it has none."""
    moves, retired = job.status.migrations.get(type_, _NO_MOVES), job.status.retired.get(type_, ())
    place = index
    for gone in (retired, moves.targets):  # both ascend, and have none in common
        before = bisect_left(gone, index)
        if before < len(gone) and gone[before] == index:
            return None
        place -= before
    return place if place < _slot_count(job, type_) else None


def training_types(job: ElasticJob) -> list[str]:
    """Return the replica types that get workers: all but DLRover's masters."""
    return [type_ for type_ in job.spec.replica_specs if type_ not in names.MASTER_TYPES]


def present_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """Return the wanted slots of a type, and the targets of moves."""
    return slots_of(job, type_).present(_slot_count(job, type_))


def all_present_slots(job: ElasticJob) -> set[Slot]:
    """Return the present slots of all types that get workers."""
    return {(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)}


def with_slots(job: ElasticJob, changed: Mapping[str, Slots]) -> ElasticJob:
    """Return the job with these slots in its status."""
    retired = job.status.retired | {t: sorted(slots.retired) for t, slots in changed.items()}
    moves = job.status.migrations | {
        t: Moves(sources=list(slots.moves), targets=list(slots.moves.values()))
        for t, slots in changed.items()
    }
    return job.having(
        retired={t: indices for t, indices in retired.items() if indices},
        migrations={t: found for t, found in moves.items() if found.sources},
    )


def slot_count(spec: ReplicaSpec, replicas: int | None = None) -> int:
    """Return the number of slots of a type, with this count instead of its own; without workers, 0."""
    count = spec.replicas if replicas is None else replicas
    return count + spec.standby if count else 0


def whole_units(spec: ReplicaSpec, granted: int, unit: int) -> ReplicaSpec:
    """Return the spec with the workers that a queue grants: whole units train, and the rest stands by."""
    replicas = min(spec.replicas, granted) // unit * unit
    standby = min(spec.standby, granted - replicas)
    return spec.model_copy(update={"replicas": replicas, "standby": standby})


def as_granted(job: ElasticJob) -> ElasticJob:
    """Return the job with no more workers than a queue grants."""
    admission, worker = job.status.admission, job.spec.replica_specs.get(names.WORKER)
    if admission is None or worker is None or not 0 < admission.workers < slot_count(worker):
        return job
    fewer = whole_units(worker, admission.workers, job.spec.elastic_policy.node_unit)
    specs = job.spec.replica_specs | {names.WORKER: fewer}
    return job.model_copy(update={"spec": job.spec.model_copy(update={"replica_specs": specs})})


def _slot_count(job: ElasticJob, type_: str) -> int:
    spec = job.spec.replica_specs.get(type_)
    return slot_count(spec) if spec else 0


def opportunistic_policy(job: ElasticJob) -> Opportunistic | None:
    """Return how the job grows into free capacity; None if it does not."""
    return job.spec.elastic_policy.opportunistic if names.WORKER in job.spec.replica_specs else None


def base_of(job: ElasticJob) -> int | None:
    """Return the number of needed workers, at least `minReplicas`, in whole units; None if all are needed."""
    scaling, worker = job.status.scaling, job.spec.replica_specs.get(names.WORKER)
    if worker is None or scaling is None or scaling.base is None:
        return None
    unit = job.spec.elastic_policy.node_unit
    return -(-max(scaling.base, worker.min_replicas or 0) // unit) * unit


def extra_slots(job: ElasticJob) -> frozenset[int]:
    """Return the slots that are wanted but not needed."""
    base = base_of(job)
    return frozenset() if base is None else frozenset(wanted_slots(job, names.WORKER)[base:])


def is_extra(job: ElasticJob, worker: ElasticWorker) -> bool:
    """Whether it is an extra worker, or will be one when it has taken the place of another."""
    base, index = base_of(job), worker.spec.index
    if base is None or worker.spec.type != names.WORKER:
        return False
    moves = job.status.migrations.get(names.WORKER, _NO_MOVES)
    if index in moves.targets:
        gone = (job.status.retired.get(names.WORKER, ()), moves.sources)
        return index - sum(bisect_left(slots, index) for slots in gone) >= base
    place = place_of(job, names.WORKER, index)
    return place is not None and place >= base


def priority_class_of(job: ElasticJob, worker: ElasticWorker) -> str | None:
    """Return the priority class of the worker's next Pod; None if the template decides."""
    policy = opportunistic_policy(job)
    return policy.priority_class_name if policy is not None and is_extra(job, worker) else None
