"""Decides which workers move for announced evictions, and how long evictions are held back. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from controller.wording import counted, some_of
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.observed.groups import group_of
from reconcilers.observed.slots import named, place_of, slots_of
from reconcilers.observed.worker_state import runs, stuck_by
from reconcilers.runtime.acts import Event
from reconcilers.scale.request import MAX_REMOVED, Origin, ScaleRequest, is_merged, own_request, written

FEW_AT_ONCE = 16
"""Limit of workers of a job, or a tenth of them, that move at once, since each needs a Pod beside those that
train; and at most half of them, since the others keep the state in memory."""
NAMED_NODES = 3
FindWorker = Callable[[int], ElasticWorker | None]
"""Function that finds a job's training worker by its index."""


@dataclass(frozen=True)
class EvictionNotice:
    """A worker that must leave its node: its Pod will be evicted, or one of its devices takes no new Pods."""

    worker: ElasticWorker
    node: str
    why: str
    """The announcement, such as `is cordoned`."""
    age_seconds: float | None
    """Time since the announcement of its eviction was first seen, by our own clock; None without one."""

    @property
    def index(self) -> int:
        return self.worker.spec.index


@dataclass(frozen=True)
class EvictionPlan:
    """The consequences of announced evictions for a job."""

    held_seconds: float
    request: ScaleRequest | None
    """The request that changes the job's moves."""
    event: Event | None
    """The Event of that request."""
    lapse: Event | None
    """The Event of evictions that are no longer held back."""
    lapsed_nodes: frozenset[str]
    """The nodes of these evictions."""


def plan_evictions(job: ElasticJob, notices: Sequence[EvictionNotice], find: FindWorker) -> EvictionPlan:
    """Plan the consequences of notices for a job."""
    request = request_of(job, notices, find) if is_merged(job) else None
    lapse = lapse_of(job, notices, find)
    return EvictionPlan(
        held_seconds(job, notices),
        request,
        event_of(job, request, notices) if request is not None else None,
        lapse,
        frozenset(notice.node for notice in notices) if lapse is not None else frozenset(),
    )


def can_move(job: ElasticJob) -> bool:
    """Whether a job's workers are replaced before they are evicted: it has patience, and they train in a
    world. A replica group is too small for that, and the others go on without it; and a queue that limits the
    job's Pods grants no further ones."""
    world, patience_seconds = job.status.rendezvous, job.spec.elastic_policy.eviction_patience_seconds
    if world is None or not world.round or not patience_seconds or group_of(job) is not None:
        return False
    return job.status.admission is None and not (job.stops or job.status.finished)


def held_seconds(job: ElasticJob, notices: Sequence[EvictionNotice]) -> float:
    """Time for which evictions of the job's workers are still held back: until its oldest announcement is as
    old as its patience. A worker that is still there by then has found no room, so no other would.

    Infinite without an announcement: a drain evicts some milliseconds after its cordon, which is too soon for
    a hold to begin.
    """
    if not can_move(job):
        return 0.0
    ages = [each.age_seconds for each in _concerned(job, notices) if each.age_seconds is not None]
    return max(job.spec.elastic_policy.eviction_patience_seconds - max(ages), 0.0) if ages else inf


def request_of(job: ElasticJob, notices: Sequence[EvictionNotice], find: FindWorker) -> ScaleRequest | None:
    """The request that moves the workers with notices, and ends moves without a reason; None if nothing
    changes. Moves of other origins go on."""
    moves, requested = slots_of(job, names.WORKER).moves, _requested_moves(job)
    announced = {notice.index for notice in _concerned(job, notices)}
    if not (announced or moves):
        return None
    ours = {source: target for source, target in moves.items() if source in requested}
    going = {s for s, t in ours.items() if s in announced or _is_needed(find(s), find(t))}
    new = sorted(announced.difference(moves))[: max(_most_at_once(job) - len(going), 0)]
    if not new and len(going) == len(ours):
        return None
    moved, kept = sorted(going.union(new)), sorted(moves.keys() - ours.keys())
    lists = {"moved": moved, "kept": kept}
    by_type: dict[str, Any] = {key: {names.WORKER: found} for key, found in lists.items() if found}
    request = own_request(job, Origin.EVICTION, **by_type)
    # Unlike counts, the same moves may be requested again: after a cordon, its end, and another cordon.
    mark = hashlib.sha256(f"{job.status.scale_request} {lists}".encode()).hexdigest()[:16]
    return request.model_copy(update={"id": f"{request.id}-{mark}"})


def event_of(job: ElasticJob, request: ScaleRequest, notices: Sequence[EvictionNotice]) -> Event:
    """The Event of a request that is written."""
    before = slots_of(job, names.WORKER).moves
    moved = {*request.moved.get(names.WORKER, ()), *request.kept.get(names.WORKER, ())}
    if new := moved.difference(before):
        nodes = {notice.node: notice.why for notice in notices if notice.index in new}
        patience_seconds = job.spec.elastic_policy.eviction_patience_seconds
        others = "others elsewhere replace them" if len(new) > 1 else "another elsewhere replaces it"
        message = f"{_nodes(nodes)}: {named(new)} must leave, and {others} first"
        if any(notice.age_seconds is not None for notice in notices if notice.index in new):
            message += f"; evictions wait for that, {patience_seconds} s at most"
        return Event("Normal", "EvictionAnnounced", message)
    ended = set(before).difference(moved)
    is_one = len(ended) == 1
    message = f"{named(ended)} {'is' if is_one else 'are'} not replaced any more: "
    message += "the node no longer announces an eviction, or has carried it out"
    return Event("Normal", "EvictionOver", message)


def lapse_of(job: ElasticJob, notices: Sequence[EvictionNotice], find: FindWorker) -> Event | None:
    """The Event of evictions that are no longer held back although workers are still there."""
    late = [notice for notice in _concerned(job, notices) if notice.age_seconds is not None]
    patience_seconds = job.spec.elastic_policy.eviction_patience_seconds
    if not late or held_seconds(job, notices) > 0:
        return None
    nodes = {notice.node: notice.why for notice in late}
    moves = slots_of(job, names.WORKER).moves
    targets = (find(moves[notice.index]) for notice in late if notice.index in moves)
    stuck = (stuck_by(target) for target in targets if target is not None)
    why = next((f" ({each.message})" for each in stuck if each is not None), "")
    indices = [notice.index for notice in late]
    verb = "is" if len(indices) == 1 else "are"
    message = (
        f"{_nodes(nodes)}: {named(indices)} {verb} not replaced within {patience_seconds} s{why}; evictions "
        "wait no longer, and the job goes on after them if its minReplicas allow that. Make room, or raise "
        "elasticPolicy.evictionPatienceSeconds"
    )
    return Event("Warning", "EvictionsNotHeld", message)


def _concerned(job: ElasticJob, notices: Sequence[EvictionNotice]) -> list[EvictionNotice]:
    """The notices of workers that run in wanted slots."""
    if not can_move(job):
        return []
    return [n for n in notices if runs(n.worker) and place_of(job, names.WORKER, n.index) is not None]


def _requested_moves(job: ElasticJob) -> Collection[int]:
    """The workers that the last request moves, if it was for evictions."""
    request = written(job)
    if request is None or request.origin is not Origin.EVICTION:
        return ()
    return request.moved.get(names.WORKER, ())


def _is_needed(source: ElasticWorker | None, target: ElasticWorker | None) -> bool:
    """Whether a target goes on although its source has no notice: the source was evicted, and the target is
    ahead of the source's own next Pod."""
    return not runs(source) and target is not None and target.status.node_name is not None


def _most_at_once(job: ElasticJob) -> int:
    count = job.spec.replica_specs[names.WORKER].replicas
    return min((count + 1) // 2, max(FEW_AT_ONCE, count // 10), MAX_REMOVED)


def _nodes(nodes: dict[str, str]) -> str:
    """The nodes with their announcements: `node-1 is cordoned`, or `2 nodes (node-1, node-2) announce
    evictions`."""
    if len(nodes) == 1:
        ((node, why),) = nodes.items()
        return f"{node} {why}"
    return f"{counted(len(nodes), 'node')} ({some_of(sorted(nodes), NAMED_NODES)}) announce evictions"
