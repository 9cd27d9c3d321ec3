"""Condition `Scaled`: whether a job has the size and the resources that were requested. Pure.

A lost worker does not make it False, since nothing was requested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from controller.wording import counted, some_of
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.model import Condition, ConditionStatus
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.look import DesiredJob
from reconcilers.observed.conditions import ConditionState, NextState, is_false
from reconcilers.observed.slots import (
    Slot,
    all_present_slots,
    migrations_of,
    training_types,
    wanted_slots,
)
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import slot_of
from reconcilers.scale.rolling import Freshness, is_complete
from reconcilers.world.participants import bounds_of

SCALED = "Scaled"
NAMED = 3
"""Most moves and slots named; the others are counted."""


def judge(before: Condition | None, look: DesiredJob) -> NextState:
    """Judge the job's size and resources; there is no condition before a change was requested."""
    return judge_by(_too_few, before, look)


def judge_by(
    too_few: Callable[[DesiredJob], list[str]], before: Condition | None, look: DesiredJob
) -> NextState:
    """Judge size and resources, with `too_few` as the judgement of the counts."""
    job, workers, fresh, requested = look.job, look.workers, look.fresh, look.scale_requested
    if not look.goes_on:
        return before
    under_way = before is not None and before.status is ConditionStatus.FALSE
    moving = bool(job.status.migrations or fresh.outdated)
    if not (requested or under_way or moving):
        return before
    missing = [
        *too_few(look),
        *_moves(job),
        *_yet_to_go(job, workers),
        *_outdated(fresh, unknown_too=requested or under_way),
    ]
    if missing:
        return ConditionState(ConditionStatus.FALSE, "Scaling", "; ".join(missing))
    return ConditionState(ConditionStatus.TRUE, "AsAsked")


def phase_while_scaling(phase: JobPhase, conditions: Sequence[Condition]) -> JobPhase:
    under_way = is_false(conditions, SCALED)
    return JobPhase.SCALING if phase is JobPhase.RUNNING and under_way else phase


def _too_few(look: DesiredJob) -> list[str]:
    job, world = look.job, look.world
    types = training_types(job)
    if names.WORKER not in types or not _has_world(look.workers, world):
        return too_few_pods(look, types)
    wanted, count = set(wanted_slots(job, names.WORKER)), job.spec.replica_specs[names.WORKER].replicas
    there = set(world.members) if world.phase is RendezvousPhase.FORMED else set()
    others = too_few_pods(look, [type_ for type_ in types if type_ != names.WORKER])
    if there <= wanted and is_complete(there, wanted, bounds_of(job), look.left_out):
        return others
    return [f"the world has {len(there & wanted)} of {counted(count, 'worker')}", *others]


def too_few_pods(look: DesiredJob, types: Sequence[str]) -> list[str]:
    """Return clauses about the types of which fewer Pods run than the job wants."""
    job, running = look.job, defaultdict[str, set[int]](set)
    for worker in look.workers if types else ():
        is_exhausted = worker.metadata.uid in look.exhausted_workers
        if is_exhausted or worker.status.phase in (WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED):
            running[worker.spec.type].add(worker.spec.index)
    missing = []
    for type_ in types:
        there = len(running[type_].intersection(wanted_slots(job, type_)))
        if there < (count := job.spec.replica_specs[type_].replicas):
            missing.append(f"{there} of {count} of type {type_} are running")
    return missing


def _has_world(workers: Sequence[ElasticWorker], rendezvous: Rendezvous) -> bool:
    """Whether the job has a world, which plain training without agents has not."""
    return rendezvous.phase is not RendezvousPhase.FORMING or any(
        current_report(worker) is not None for worker in workers if worker.spec.type == names.WORKER
    )


def _moves(job: ElasticJob) -> list[str]:
    moves = migrations_of(job)
    shown = [f"{m.type} {m.target} takes the place of {m.source}" for m in moves[:NAMED]]
    return shown if len(moves) <= NAMED else [*shown, f"{len(moves) - NAMED} more moves"]


def _yet_to_go(job: ElasticJob, workers: Sequence[ElasticWorker]) -> list[str]:
    gone = {slot_of(w) for w in workers} - all_present_slots(job)
    return [f"still to go: {_named(gone)}"] if gone else []


def _outdated(fresh: Freshness, *, unknown_too: bool) -> list[str]:
    waiting = fresh.outdated | (fresh.unknown if unknown_too else frozenset())
    return [f"still to get new resources: {_named(waiting)}"] if waiting else []


def _named(slots: Collection[Slot]) -> str:
    return some_of([f"{type_} {index}" for type_, index in sorted(slots)], NAMED)
