"""Which slots a replica type has: the first indices that were not retired, for `replicas` and `standby`.

No slot is one of those who stand by: whoever is not in the world, and ready, does (docs/elasticity.md). So
`count` here is that of both together.

A slot that is to be moved (`status.migrations`) stays wanted until another has taken its place. That other
one, the target, exists besides the wanted. When all moves are done, the wanted are the same as if the sources
had been retired to begin with; no slot but a source ever gives way to a target.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from crds.elasticjob import ElasticJob, Migration, ReplicaSpec


def wanted(count: int, retired: Collection[int]) -> tuple[int, ...]:
    """The first `count` indices that are not retired."""
    gone = frozenset(retired)
    return tuple(itertools.islice((index for index in itertools.count() if index not in gone), count))


@dataclass(frozen=True)
class Slots:
    """Of one type: what its status says."""

    retired: frozenset[int] = frozenset()
    moves: Mapping[int, int] = field(default_factory=dict)
    """Target by source."""

    def wanted(self, count: int) -> tuple[int, ...]:
        return wanted(count, self.retired.union(self.moves.values()))

    def present(self, count: int) -> tuple[int, ...]:
        """The slots that are to exist: the wanted, and the targets."""
        return tuple(sorted({*self.wanted(count), *self.moves.values()}))

    def finally_wanted(self, count: int) -> tuple[int, ...]:
        """When all moves are done."""
        return wanted(count, self.retired.union(self.moves))

    def moved(self, source: int) -> Slots:
        """After the target has taken its place."""
        moves = {s: t for s, t in self.moves.items() if s != source}
        return Slots(self.retired | {source}, moves)

    def without(self, indices: Iterable[int], count: int) -> Slots:
        """After these were removed for good; `count` is what there are then."""
        return replace(self, retired=self.retired.union(indices)).moving(self.moves, count)

    def moving(self, sources: Iterable[int], count: int) -> Slots:
        """With moves of these and of no others, as far as they are wanted; those under way go on.

        A target that is given up is retired if slots behind it are in use, or it would count in their stead.
        """
        present = self.wanted(count)
        asked = sorted({*sources}.intersection(present))
        kept = {s: self.moves[s] for s in asked if s in self.moves}
        retired = self._with_given_up(present, kept)
        final = wanted(count, retired.union(asked))
        moves = {s: t for s, t in kept.items() if t in final}
        free = (index for index in final if index not in {*present, *moves.values()})
        moves |= dict(zip((s for s in asked if s not in moves), free, strict=True))
        return Slots(self._with_given_up(present, moves), dict(sorted(moves.items())))

    def _with_given_up(self, present: Collection[int], moves: Mapping[int, int]) -> frozenset[int]:
        in_use = {*present, *moves.values()}
        last = max(in_use, default=0)
        return self.retired.union(t for t in self.moves.values() if t not in in_use and t < last)


def slots_of(job: ElasticJob, type_: str) -> Slots:
    moves = {m.source: m.target for m in job.status.migrations if m.type == type_}
    return Slots(frozenset(job.status.retired.get(type_, ())), moves)


def wanted_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """None, if the job has no such type."""
    return slots_of(job, type_).wanted(_slot_count(job, type_))


def present_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """The wanted, and those that are to take the place of one."""
    return slots_of(job, type_).present(_slot_count(job, type_))


def with_slots(job: ElasticJob, changed: Mapping[str, Slots]) -> ElasticJob:
    """The job, with these in its status."""
    retired = dict(job.status.retired)
    moves = [m for m in job.status.migrations if m.type not in changed]
    for type_, slots in changed.items():
        retired[type_] = sorted(slots.retired)
        moves += [Migration(type=type_, source=s, target=t) for s, t in slots.moves.items()]
    update = {"retired": {t: indices for t, indices in retired.items() if indices}, "migrations": moves}
    return job.model_copy(update={"status": job.status.model_copy(update=update)})


def slot_count(spec: ReplicaSpec, replicas: int | None = None) -> int:
    """How many slots a type has, with this count instead of its own; who has no workers has no standby."""
    count = spec.replicas if replicas is None else replicas
    return count + spec.standby if count else 0


def _slot_count(job: ElasticJob, type_: str) -> int:
    spec = job.spec.replica_specs.get(type_)
    return slot_count(spec) if spec else 0
