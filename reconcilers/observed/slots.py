"""Which slots a replica type has: the first that are not retired, for `replicas` and `standby` together.

A slot that is moved (`status.migrations`) stays wanted until its target, which exists besides, has taken its
place; then it is retired. A retired slot is vacant when no ElasticWorker, Pod or place in the world is left
of it. Vacant slots are used again: as targets at once, for a greater count only when many are retired,
because workers behind them change their rank by it. The last part is about extra workers, the highest slots:
with a count it is set how many are needed (`status.scaling.base`), and no world waits for the rest.
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
"""So many may be retired, or a quarter as many as there are slots, before a greater count takes them."""
NAMED_WORKERS = 5
"""The others are counted."""
_NO_MOVES = Moves()


def named(workers: Collection[int]) -> str:
    """Such as `workers 0, 1, 2 and 4 more`."""
    indices = some_of([str(index) for index in sorted(workers)], NAMED_WORKERS)
    return f"worker{'s' if len(workers) > 1 else ''} {indices}"


def wanted(count: int, retired: Collection[int]) -> tuple[int, ...]:
    """The first `count` indices that are not retired."""
    gone = retired if isinstance(retired, set | frozenset) else frozenset(retired)
    return tuple(itertools.islice(itertools.filterfalse(gone.__contains__, itertools.count()), count))


@dataclass(frozen=True)
class Migration:
    """One slot takes another's place, once it is up."""

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
        """The slots that are to exist: the wanted, and the targets."""
        wanted = self.wanted(count)
        return tuple(sorted({*wanted, *self.moves.values()})) if self.moves else wanted

    def moved(self, source: int) -> Slots:
        """After the target has taken its place."""
        moves = {s: t for s, t in self.moves.items() if s != source}
        return Slots(self.retired | {source}, moves)

    def without(self, indices: Iterable[int], count: int) -> Slots:
        """After these were removed for good; `count` is what there are then."""
        return replace(self, retired=self.retired.union(indices)).moving(self.moves, count)

    def grown(self, by: int, count: int, vacant: Collection[int]) -> Slots:
        """Uses vacant slots again for some of those that a greater count asks for.

        Args:
            by: how many slots more are wanted than before.
        """
        number = min(by, len(self.retired) - max(FEW_RETIRED, count // 4))
        return (
            self if number <= 0 else replace(self, retired=self.retired.difference(sorted(vacant)[:number]))
        )

    def moving(self, sources: Collection[int], count: int, vacant: Collection[int] = ()) -> Slots:
        """Moves these and no others, as far as they are wanted; moves under way go on.

        A target that is given up is retired if slots behind it are in use, or it would count in their stead.

        Args:
            vacant: retired slots of which nothing is left. They are targets before those never used.
        """
        if not (sources or self.moves or self.retired):
            return self  # so it is of most jobs, in each look
        present = self.wanted(count)
        asked = sorted({*sources}.intersection(present))
        kept = {self.moves[s] for s in asked if s in self.moves}
        given_up = {*self.moves.values()} - kept
        last = max((*present, *kept), default=0)
        final = wanted(count, self.retired.union(asked, (t for t in given_up if t < last)))
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
    """Returns the retired slots of which nothing is left, by type.

    In a job with extra workers, only those behind the workers that are needed: before them, a newcomer would
    make an extra worker of one that has a Pod of full priority.

    Args:
        job: as it is published: what is retired from now on is not vacant yet.
        there: the slots of its ElasticWorkers and Pods, those that are being deleted too.
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
    """None, if the job has no such type."""
    return slots_of(job, type_).wanted(_slot_count(job, type_))


def place_of(job: ElasticJob, type_: str, index: int) -> int | None:
    """Returns the place of a slot in `wanted_slots`, without making them all; None if it is not there."""
    moves, retired = job.status.migrations.get(type_, _NO_MOVES), job.status.retired.get(type_, ())
    place = index
    for gone in (retired, moves.targets):  # both ascend, and have none in common
        before = bisect_left(gone, index)
        if before < len(gone) and gone[before] == index:
            return None
        place -= before
    return place if place < _slot_count(job, type_) else None


def training_types(job: ElasticJob) -> list[str]:
    """The replica types that get workers: all but DLRover's masters."""
    return [type_ for type_ in job.spec.replica_specs if type_ not in names.MASTER_TYPES]


def present_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """The wanted, and those that are to take the place of one."""
    return slots_of(job, type_).present(_slot_count(job, type_))


def all_present_slots(job: ElasticJob) -> set[Slot]:
    """The same of all types that get workers."""
    return {(type_, index) for type_ in training_types(job) for index in present_slots(job, type_)}


def with_slots(job: ElasticJob, changed: Mapping[str, Slots]) -> ElasticJob:
    """The job, with these in its status."""
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
    """How many slots a type has, with this count instead of its own; who has no workers has no standby."""
    count = spec.replicas if replicas is None else replicas
    return count + spec.standby if count else 0


def whole_units(spec: ReplicaSpec, granted: int, unit: int) -> ReplicaSpec:
    """Workers of which a queue grants so many, and not all: whole units train, and what is left stands by."""
    replicas = min(spec.replicas, granted) // unit * unit
    standby = min(spec.standby, granted - replicas)
    return spec.model_copy(update={"replicas": replicas, "standby": standby})


def as_granted(job: ElasticJob) -> ElasticJob:
    """The job with no more workers than a queue grants."""
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
    """How the job grows into free room, if it does."""
    return job.spec.elastic_policy.opportunistic if names.WORKER in job.spec.replica_specs else None


def base_of(job: ElasticJob) -> int | None:
    """How many workers are needed, where not all are: no fewer than the job may have, in whole units."""
    scaling, worker = job.status.scaling, job.spec.replica_specs.get(names.WORKER)
    if worker is None or scaling is None or scaling.base is None:
        return None
    unit = job.spec.elastic_policy.node_unit
    return -(-max(scaling.base, worker.min_replicas or 0) // unit) * unit


def extra_slots(job: ElasticJob) -> frozenset[int]:
    """The slots that are wanted and not needed."""
    base = base_of(job)
    return frozenset() if base is None else frozenset(wanted_slots(job, names.WORKER)[base:])


def is_extra(job: ElasticJob, worker: ElasticWorker) -> bool:
    """Whether it is an extra worker, or is to be one when it has taken the place of another."""
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
    """Returns the priority class of the worker's next Pod, where that is not for the template to say."""
    policy = opportunistic_policy(job)
    return policy.priority_class_name if policy is not None and is_extra(job, worker) else None
