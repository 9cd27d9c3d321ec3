"""The rolling update of a type's workers to new resources, one node unit at a time. Pure.

If the world may do without the unit, a smaller one is published, the unit's workers get new Pods, and join
again. Otherwise replacements come up before the unit goes (`settle`). The next unit follows when all train
together again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.observed.resources import resources_digest, resources_of
from reconcilers.observed.slots import Slot, all_present_slots, present_slots, slots_of, wanted_slots
from reconcilers.observed.worker_state import ENDED, current_report, runs, stuck_by
from reconcilers.observed.workers import Workers, slot_of
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import Assembly

REASON = "its resources were changed"


@dataclass(frozen=True)
class Freshness:
    """Workers whose Pods have other resources than their next ones will have."""

    outdated: frozenset[Slot] = frozenset()
    unknown: frozenset[Slot] = frozenset()
    """Workers whose Pods exist, and are not in the cache yet."""

    def of(self, type_: str) -> frozenset[int]:
        return frozenset(index for t, index in self.outdated if t == type_)


@dataclass(frozen=True)
class Roll:
    """The next step of the update."""

    leaving: frozenset[int] = frozenset()
    """Workers that are in no world until they have new Pods."""
    relaunches: tuple[ElasticWorker, ...] = ()
    """Workers that get new Pods now."""
    sources: frozenset[int] = frozenset()
    """Workers whose replacements come up first."""

    def marked(self, participants: Sequence[Participant]) -> Sequence[Participant]:
        """Return the participants, with the leaving ones marked."""
        if not self.leaving:
            return participants
        return [
            replace(p, leaving=f"worker {p.index} gets a new Pod: {REASON}") if p.index in self.leaving else p
            for p in participants
        ]


def freshness(job: ElasticJob, workers: Iterable[ElasticWorker], pods: Mapping[str, str | None]) -> Freshness:
    """The workers with outdated Pods. Pods that have ended, or have no digest of their resources, since an
    earlier version of dlr created them, count as up to date."""
    outdated, unknown = set(), set()
    of_type = {t: resources_digest(resources_of(job, t, None)) for t in job.spec.replica_specs}
    for worker in workers:
        status = worker.status
        current = status.observed_incarnation == worker.spec.incarnation and status.pod_uid is not None
        if not current or status.phase in ENDED or worker.spec.type not in job.spec.replica_specs:
            continue
        uid = worker.metadata.uid
        if uid not in pods:
            unknown.add(slot_of(worker))
            continue
        built, own, wanted = pods[uid], worker.spec.resources, of_type[worker.spec.type]
        if own is not None:
            wanted = resources_digest(resources_of(job, worker.spec.type, own))
        if built is not None and built != wanted:
            outdated.add(slot_of(worker))
    return Freshness(frozenset(outdated), frozenset(unknown))


def plan_roll(
    job: ElasticJob, workers: Workers, there: Assembly, fresh: Freshness, without: Collection[int] = ()
) -> Roll:
    """The next step for outdated workers.

    Args:
        fresh: `freshness` by the published job, from which new Pods are built.
        without: workers that the world excludes.
    """
    if not fresh.outdated:
        return Roll()
    published, bounds, members, present = there.published, there.bounds, there.members, all_present_slots(job)
    old = [w for w in workers if slot_of(w) in fresh.outdated]
    idle = [w for w in old if slot_of(w) in present and _loses_nothing(w, published, members)]
    settled = {slot_of(worker) for worker in idle}
    lonely = [w for w in old if slot_of(w) not in settled and not _in_world(w, published)]
    relaunches = [*idle, *_one_each(job, workers, lonely)]
    waiting = frozenset(w.spec.index for w in idle if w.spec.type == names.WORKER)
    outdated = fresh.of(names.WORKER)
    unit = [index for index in published.members if index in outdated][: bounds.node_unit]
    if not unit or fresh.unknown or not _all_train(job, there, without):
        return Roll(waiting, tuple(relaunches))
    expected = {w.spec.index for w in workers.training if stuck_by(w) is None}
    beside = expected.intersection(present_slots(job, names.WORKER)).difference(members, without)
    ready = {p.index for p in there.joinable}.intersection(beside - waiting)
    if bounds.standby and len(ready) < len(unit) <= len(beside):
        return Roll(waiting, tuple(relaunches))  # replacements with the new amounts are coming up
    if bounds.floor(len(published.members) - len(unit) + len(ready)):
        return Roll(waiting.union(unit), tuple(relaunches))
    return Roll(waiting, tuple(relaunches), frozenset(unit))


def roll_without_world(job: ElasticJob, workers: Workers, fresh: Freshness) -> Roll:
    """The next step for a job without a world: each type gets new Pods one by one; Pods that have not started
    are replaced at once."""
    present = all_present_slots(job) if fresh.outdated else set[Slot]()
    old = [w for w in workers if slot_of(w) in fresh.outdated] if fresh.outdated else []
    idle = [w for w in old if slot_of(w) in present and w.status.phase is WorkerPhase.PENDING]
    settled = {slot_of(worker) for worker in idle}
    others = _one_each(job, workers, (w for w in old if slot_of(w) not in settled))
    return Roll(relaunches=(*idle, *others))


def is_complete(
    members: Collection[int], wanted: Collection[int], bounds: Bounds, without: Collection[int]
) -> bool:
    """Whether the world has as many of the wanted slots as it can have without the excluded ones."""
    left_out = set(wanted).intersection(without).difference(members)
    return len(set(wanted).intersection(members)) >= bounds.without(len(left_out)).desired


def _loses_nothing(worker: ElasticWorker, published: Rendezvous, members: Collection[int]) -> bool:
    """Whether the worker's Pod can be replaced at once: it has not started, or is in no world."""
    if worker.status.phase is WorkerPhase.PENDING:
        return True
    if worker.status.phase is not WorkerPhase.RUNNING or worker.spec.type != names.WORKER:
        return False
    if published.phase is RendezvousPhase.FORMED:
        return worker.spec.index not in members
    return published.phase is RendezvousPhase.FORMING and current_report(worker) is not None


def _in_world(worker: ElasticWorker, published: Rendezvous) -> bool:
    """Whether the worker is, or was, in a world, and so gets its new Pod only after it has left."""
    return worker.spec.type == names.WORKER and published.phase is not RendezvousPhase.FORMING


def _one_each(job: ElasticJob, workers: Workers, lonely: Iterable[ElasticWorker]) -> list[ElasticWorker]:
    """The first worker of each type without a world, if all of its type are running."""
    first: dict[str, ElasticWorker] = {}
    for worker in lonely:
        first.setdefault(worker.spec.type, worker)
    return [worker for type_, worker in first.items() if _all_run(job, type_, workers)]


def _all_run(job: ElasticJob, type_: str, workers: Workers) -> bool:
    running = {w.spec.index for w in workers.of_type[type_] if runs(w)}
    return running.issuperset(wanted_slots(job, type_))


def _all_train(job: ElasticJob, there: Assembly, without: Collection[int]) -> bool:
    """Whether the world is complete, all its members have started training, and none has finished."""
    members, round_ = there.members, there.published.round
    complete = is_complete(members, wanted_slots(job, names.WORKER), there.bounds, without)
    if not there.is_formed or not complete or slots_of(job, names.WORKER).moves:
        return False
    begun = all(
        p.report is not None and p.report.state is AgentState.RUNNING and p.report.observed_round == round_
        for p in there.participants
        if p.index in members
    )
    return begun and not there.is_ending
