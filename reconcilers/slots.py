"""Which slots a replica type has: the first `replicas` indices that were not retired.

A slot that is to be moved (`status.migrations`) stays wanted until another has taken its place. That other
one, the target, exists besides the wanted. When all moves are done, the wanted are the same as if the sources
had been retired to begin with; no slot but a source ever gives way to a target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

from crds.elasticjob import ElasticJob, Migration


def wanted(replicas: int, retired: Collection[int]) -> tuple[int, ...]:
    """The first `replicas` indices that are not retired."""
    gone = frozenset(retired)
    return tuple(islice((index for index in count() if index not in gone), replicas))


@dataclass(frozen=True)
class Slots:
    """Of one type: what its status says."""

    retired: frozenset[int] = frozenset()
    moves: Mapping[int, int] = field(default_factory=dict)
    """Target by source."""

    def wanted(self, replicas: int) -> tuple[int, ...]:
        return wanted(replicas, self.retired.union(self.moves.values()))

    def present(self, replicas: int) -> tuple[int, ...]:
        """The slots that are to exist: the wanted, and the targets."""
        return tuple(sorted({*self.wanted(replicas), *self.moves.values()}))

    def finally_wanted(self, replicas: int) -> tuple[int, ...]:
        """When all moves are done."""
        return wanted(replicas, self.retired.union(self.moves))

    def moved(self, source: int) -> Slots:
        """After the target has taken its place."""
        moves = {s: t for s, t in self.moves.items() if s != source}
        return Slots(self.retired | {source}, moves)

    def without(self, indices: Iterable[int], replicas: int) -> Slots:
        """After these were removed for good; `replicas` is the count then."""
        return replace(self, retired=self.retired.union(indices)).moving(self.moves, replicas)

    def moving(self, sources: Iterable[int], replicas: int) -> Slots:
        """With moves of these and of no others, as far as they are wanted; those under way go on.

        A target that is given up is retired if slots behind it are in use, or it would count in their stead.
        """
        present = self.wanted(replicas)
        asked = sorted({*sources}.intersection(present))
        kept = {s: self.moves[s] for s in asked if s in self.moves}
        retired = self._with_given_up(present, kept)
        final = wanted(replicas, retired.union(asked))
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
    return slots_of(job, type_).wanted(_replicas(job, type_))


def present_slots(job: ElasticJob, type_: str) -> tuple[int, ...]:
    """The wanted, and those that are to take the place of one."""
    return slots_of(job, type_).present(_replicas(job, type_))


def with_slots(job: ElasticJob, changed: Mapping[str, Slots]) -> ElasticJob:
    """The job, with these in its status."""
    retired = dict(job.status.retired)
    moves = [m for m in job.status.migrations if m.type not in changed]
    for type_, slots in changed.items():
        retired[type_] = sorted(slots.retired)
        moves += [Migration(type=type_, source=s, target=t) for s, t in slots.moves.items()]
    update = {"retired": {t: indices for t, indices in retired.items() if indices}, "migrations": moves}
    return job.model_copy(update={"status": job.status.model_copy(update=update)})


def _replicas(job: ElasticJob, type_: str) -> int:
    spec = job.spec.replica_specs.get(type_)
    return spec.replicas if spec else 0
