"""New resources go through a type's workers one node unit at a time, while the others train. Pure.

Where the world is allowed without the unit, it goes first: a smaller world is published, its workers get new
Pods, and join again. Where it is not, others come up in its place before it goes (`moving.py`). The next unit
has its turn when all train together again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crds import names
from crds.elasticjob import ElasticJob, Rendezvous, RendezvousPhase
from crds.elasticworker import AgentState, ElasticWorker, WorkerPhase
from reconcilers.pod.builder import pod_name
from reconcilers.pod.resources import resources_digest, resources_of
from reconcilers.pod.worker_status import ENDED, current_report, stuck_by
from reconcilers.world.rendezvous import Bounds, Participant, is_ending
from reconcilers.world.slots import present_slots, slots_of, wanted_slots

REASON = "its resources were changed"
Slot = tuple[str, int]
"""Type and index."""


@dataclass(frozen=True)
class Freshness:
    """Whose Pods have not the resources that their next ones will have."""

    outdated: frozenset[Slot] = frozenset()
    unknown: frozenset[Slot] = frozenset()
    """The Pod is there, but not in the cache yet."""

    def of(self, type_: str) -> frozenset[int]:
        return frozenset(index for t, index in self.outdated if t == type_)


@dataclass(frozen=True)
class Roll:
    """The next step."""

    leaving: frozenset[int] = frozenset()
    """Workers to be in no world until they have their new Pods."""
    relaunches: tuple[ElasticWorker, ...] = ()
    """Workers to get new Pods now."""
    sources: frozenset[int] = frozenset()
    """Workers in whose place others are to come up first."""

    def marked(self, participants: Iterable[Participant]) -> list[Participant]:
        """The participants, with those who are to leave marked."""
        return [
            replace(p, leaving=f"worker {p.index} gets a new Pod: {REASON}") if p.index in self.leaving else p
            for p in participants
        ]


def freshness(
    job: ElasticJob, workers: Iterable[ElasticWorker], pods: Mapping[str, Mapping[str, Any]]
) -> Freshness:
    """`pods` by name. What has ended, or was made before Pods told of their resources, is up to date."""
    outdated, unknown = set(), set()
    of_type = {t: resources_digest(resources_of(job, t, None)) for t in job.spec.replica_specs}
    for worker in workers:
        slot, status = (worker.spec.type, worker.spec.index), worker.status
        current = status.observed_incarnation == worker.spec.incarnation and status.pod_uid is not None
        ended = status.phase in ENDED
        if not current or ended or worker.spec.type not in job.spec.replica_specs:
            continue
        pod = pods.get(pod_name(worker))
        if pod is None:
            unknown.add(slot)
            continue
        built = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_RESOURCES)
        own, wanted = worker.spec.resources, of_type[worker.spec.type]
        if own is not None:
            wanted = resources_digest(resources_of(job, worker.spec.type, own))
        if built is not None and built != wanted:
            outdated.add(slot)
    return Freshness(frozenset(outdated), frozenset(unknown))


def plan_roll(
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    participants: Sequence[Participant],
    published: Rendezvous,
    bounds: Bounds,
    fresh: Freshness,
    without: Collection[int] = (),
) -> Roll:
    """What to do next for those that are outdated.

    Args:
        job: whose slots these are.
        workers: all of the job's.
        participants: the training workers; sources and targets of moves too.
        published: the world.
        bounds: of the world.
        fresh: by `freshness`, of the job as published, since that is what new Pods are built with.
        without: workers that the world does without, however long.
    """
    old = [w for w in workers if (w.spec.type, w.spec.index) in fresh.outdated]
    if not old:
        return Roll()
    idle = [w for w in old if _loses_nothing(w, published)]
    idle = [w for w in idle if w.spec.index in present_slots(job, w.spec.type)]
    lonely = [w for w in old if w not in idle and not _in_world(w, published)]
    relaunches = [*idle, *_one_each(job, workers, lonely)]
    waiting = frozenset(w.spec.index for w in idle if w.spec.type == names.WORKER)
    members = sorted(fresh.of(names.WORKER).intersection(published.members))
    unit = members[: bounds.node_unit]
    if not unit or not _all_train(job, participants, published, bounds, without):
        return Roll(waiting, tuple(relaunches))
    beside = _who_could_step_in(job, workers).difference(published.members, without)
    ready = {p.index for p in participants if p.joinable}.intersection(beside - waiting)
    if bounds.standby and len(ready) < len(unit) <= len(beside):
        return Roll(waiting, tuple(relaunches))  # they are on their way, with the new amounts
    if bounds.floor(len(published.members) - len(unit) + len(ready)):
        return Roll(waiting.union(unit), tuple(relaunches))
    return Roll(waiting, tuple(relaunches), frozenset(unit))


def _who_could_step_in(job: ElasticJob, workers: Sequence[ElasticWorker]) -> frozenset[int]:
    """The training workers that are up or can be expected."""
    training = [w for w in workers if w.spec.type == names.WORKER and stuck_by(w) is None]
    return frozenset(w.spec.index for w in training).intersection(present_slots(job, names.WORKER))


def is_complete(
    members: Collection[int], wanted: Collection[int], bounds: Bounds, without: Collection[int]
) -> bool:
    """Whether the world has as many of the wanted slots as it can have without some of them."""
    left_out = set(wanted).intersection(without).difference(members)
    return len(set(wanted).intersection(members)) >= bounds.without(len(left_out)).desired


def _in_world(worker: ElasticWorker, published: Rendezvous) -> bool:
    """Whether it is, or was, a member: then it gets its new Pod when it has left."""
    formed_once = published.phase is not RendezvousPhase.FORMING
    return worker.spec.type == names.WORKER and formed_once


def _loses_nothing(worker: ElasticWorker, published: Rendezvous) -> bool:
    """Whether its Pod can be replaced at once: it has not started, or its agent waits beside a world."""
    if worker.status.phase is WorkerPhase.PENDING:
        return True
    if worker.status.phase is not WorkerPhase.RUNNING or worker.spec.type != names.WORKER:
        return False
    if published.phase is RendezvousPhase.FORMED:
        return worker.spec.index not in published.members
    return published.phase is RendezvousPhase.FORMING and current_report(worker)


def _one_each(
    job: ElasticJob, workers: Sequence[ElasticWorker], lonely: Sequence[ElasticWorker]
) -> list[ElasticWorker]:
    """Of each type that has no world, the first, if all of its type are running."""
    chosen: dict[str, ElasticWorker] = {}
    for worker in lonely:
        type_ = worker.spec.type
        running = {
            w.spec.index
            for w in workers
            if w.spec.type == type_
            and w.status.phase is WorkerPhase.RUNNING
            and w.status.observed_incarnation == w.spec.incarnation
        }
        if running.issuperset(wanted_slots(job, type_)):
            chosen.setdefault(type_, worker)
    return list(chosen.values())


def _all_train(
    job: ElasticJob,
    participants: Sequence[Participant],
    published: Rendezvous,
    bounds: Bounds,
    without: Collection[int],
) -> bool:
    """Whether the world is complete, everybody in it has begun, and nobody in it is done."""
    members = set(published.members)
    complete = is_complete(members, wanted_slots(job, names.WORKER), bounds, without)
    if published.phase is not RendezvousPhase.FORMED or not complete or slots_of(job, names.WORKER).moves:
        return False
    begun = all(
        p.report is not None
        and p.report.state is AgentState.RUNNING
        and p.report.observed_round == published.round
        for p in participants
        if p.index in members
    )
    return begun and not is_ending(published, participants)
