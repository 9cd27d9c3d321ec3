"""Extra workers: those beyond how many a job needs (`status.scaling.base`). Pure.

The world does not wait for an extra worker that finds no node, or whose Pod was taken: it goes on at once
with the others. Who asked for them, and gives them back, is not decided here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase as Phase
from crds.rendezvous import Rendezvous
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.policy import exhausted_workers, spare_workers
from reconcilers.observed.slots import base_of, extra_slots
from reconcilers.observed.worker_state import stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import Bounds, Participant

CHECKPOINT_SECONDS = 900.0
"""Longest wait of extra workers for a checkpoint of a job that tells of them, where it names no other."""


@dataclass(frozen=True)
class Extra:
    """The extra workers, by how they are; those first of whom the job has least."""

    lost: frozenset[int] = frozenset()
    """Workers whose room somebody else has: they get no other Pod."""
    exhausted: frozenset[int] = frozenset()
    """Workers whose Pods have failed too often to get another."""
    stuck: frozenset[int] = frozenset()
    on_their_way: frozenset[int] = frozenset()
    starting: frozenset[int] = frozenset()
    training: frozenset[int] = frozenset()
    """Members of the world, or of the last one while it is broken."""


def extra_of(job: ElasticJob, workers: Workers, published: Rendezvous) -> Extra:
    """Sort the extra workers by how they are."""
    if not (slots := extra_slots(job)):
        return Extra()
    members = set(published.members) if published.phase is not Phase.FORMING else set()
    exhausted = exhausted_workers(workers, spare_workers(job, workers))
    found: dict[str, set[int]] = {}
    for index in slots:
        kind = _kind(workers.by_slot.get((names.WORKER, index)), members, exhausted)
        found.setdefault(kind, set()).add(index)
    return Extra(**{kind: frozenset(indices) for kind, indices in found.items()})


def _kind(worker: ElasticWorker | None, members: Container[int], exhausted: Container[str]) -> str:
    if worker is None or worker.status.observed_incarnation != worker.spec.incarnation:
        return "on_their_way"
    if worker.metadata.uid in exhausted:
        return "exhausted"
    end = worker.status.last_exit if worker.status.phase is WorkerPhase.FAILED else None
    if end is not None and end.incarnation == worker.spec.incarnation and meaning_of(end.exit_class).taken:
        return "lost"
    if stuck_by(worker) is not None:
        return "stuck"
    if worker.spec.index in members:
        return "training"
    has_node = worker.status.node_name or worker.status.phase is WorkerPhase.RUNNING
    return "starting" if has_node else "on_their_way"


def with_extra(
    bounds: Bounds, job: ElasticJob, workers: Workers, published: Rendezvous, people: Iterable[Participant]
) -> Bounds:
    """The bounds of a world that does not wait for extra workers that find no node, are taken, or exhausted.

    Where checkpoints are told, and are not in memory, the others wait for the next.
    """
    if base_of(job) is None:
        return bounds
    extra, world = extra_of(job, workers, published), set(published.members)
    bounds = replace(
        bounds, desired=bounds.desired - len(extra.stuck) - len(extra.lost) - len(extra.exhausted)
    )
    tells = any(p.seconds_since_checkpoint is not None for p in people if p.index in world)
    return replace(bounds, grow_at_checkpoint_seconds=checkpoint_seconds(job)) if tells else bounds


def checkpoint_seconds(job: ElasticJob) -> float:
    """The longest wait of extra workers for a checkpoint, where any is told."""
    unsaid = 0.0 if keeps_in_memory(job) else CHECKPOINT_SECONDS
    return float(job.spec.elastic_policy.grow_at_checkpoint_seconds) or unsaid


def keeps_in_memory(job: ElasticJob) -> bool:
    """Whether the workers keep their checkpoints in memory."""
    return job.spec.replica_specs[names.WORKER].memory_checkpoint is not None
