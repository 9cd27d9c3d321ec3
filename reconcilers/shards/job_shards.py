"""A job's shard sets in a look at it: the next leases, what is told of them, and whether they end the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.intervals import count, first, minus, to_text
from crds.model import MAX_CONDITION_MESSAGE, Condition, ConditionStatus
from crds.phases import RendezvousPhase
from crds.shard_set_status import MAX_SHARDS_DONE, ShardSetStatus
from crds.texts import shortened
from reconcilers.observed.conditions import NextState, State
from reconcilers.observed.groups import group_of
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event
from reconcilers.shards.by_shards import expected_workers
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import ShardSet, crew_of, of_status

SHARDS_DONE = "ShardsDone"
PULLING = "Pulling"
ENDED = "ShardsFailed"
SECONDS_PER_WORKER = 0.001
"""Between two writes of leases, for each worker: with 1,000 of them, one second. Agents ask early enough."""
LEAST_SECONDS = 0.05
"""Shorter pauses are not worth a look of their own."""
NAMED = 20
"""So many ranges of failed elements are in a sentence; the status has all."""


def seconds_to_lease(job: ElasticJob, workers: int, age_seconds: float) -> float | None:
    """Until leases may be written again: all agents of the job are told of each write. None if it may be now.

    Args:
        workers: number of the job's training workers.
        age_seconds: how long ago they were written last.
    """
    wanted = workers * SECONDS_PER_WORKER
    if not job.status.shards or wanted < LEAST_SECONDS or age_seconds >= wanted:
        return None
    return wanted - age_seconds


def next_sets(
    job: ElasticJob, workers: Workers, surplus: Iterable[ElasticWorker], now: datetime
) -> tuple[ShardSet, ...] | None:
    """The shard sets after the workers' reports; None if nothing changes.

    None too for a replica group: the status of its grouped job has them (reconcilers/groups/shards.py).

    Args:
        surplus: the workers that are deleted after this: their reports are the last ones.
    """
    if group_of(job) is not None or not (workers.telling_shards or job.status.shards):
        return None
    world = job.status.rendezvous
    members = len(world.members) if world is not None and world.phase is RendezvousPhase.FORMED else 0
    known = tuple(map(of_status, job.status.shards))
    members = max(members, expected_workers(job, known, workers))
    sets = lease(known, crew_of(workers, {worker.metadata.uid for worker in surplus}, members), now)
    return None if sets == known else sets


def written(sets: Sequence[ShardSet]) -> dict[str, Any]:
    """The fields of a job's status that show the shard sets."""
    done = ", ".join(f"{each.definition.name} {each.done}/{each.definition.size}" for each in sets)
    return {"shards": [each.to_status() for each in sets], "shards_done": shortened(done, MAX_SHARDS_DONE)}


def events(before: Sequence[ShardSetStatus], sets: Sequence[ShardSet] | None) -> Iterator[Event]:
    """Events for elements that have failed for good, and for sets that are over."""
    known = {each.definition.name: each for each in map(of_status, before)} if sets is not None else {}
    for each in sets or ():
        named = each.definition
        old = known.get(named.name)
        is_new = old is None or old.definition.epoch != named.epoch
        fresh = each.failed if old is None or is_new else minus(each.failed, old.failed)
        if fresh:
            times = "once" if named.retries == 0 else f"{named.retries + 1} times"
            message = (
                f"shard set {named.name!r}: {_named(fresh)} failed {times} and will not be tried again"
                f"{_because(each)}"
            )
            yield Event("Warning", "ShardFailed", message)
        if each.finished_at is not None and (old is None or old.finished_at != each.finished_at):
            yield Event("Normal", SHARDS_DONE, _sentence(each))


def ending(job: ElasticJob) -> str:
    """Why the job fails by its shard sets; empty if it does not."""
    # Decoding the leases of a thousand workers in each look would cost more than all else here.
    suspects = [
        each
        for each in job.status.shards
        if each.failed_elements or each.tried or each.again or each.rest.startswith("z")
    ]
    for each in map(of_status, suspects):
        named = each.definition
        if each.scattered:
            return (
                f"shard set {named.name!r}: {each.scattered}, more than the job's status can name"
                f"{_because(each)}"
            )
        if each.has_failed:
            many = f"{_elements(count(each.failed))} failed for good ({_named(each.failed)})"
            return f"shard set {named.name!r}: {many}, and max_failed is {named.max_failed}{_because(each)}"
    return ""


def judge(known: Condition | None, sets: Sequence[ShardSet] | None, *, has_ended: bool) -> NextState:
    """Judges the sets: it changes when one begins, ends, or has elements that failed, and not by progress.

    Args:
        sets: the next ones; None if nothing in them changes.
        has_ended: the job has ended, so nobody pulls any more.
    """
    found = known if sets is None else _state(sets)
    if not has_ended or found is None or found.reason != PULLING:
        return found
    message = shortened(f"the job has ended; {found.message}", MAX_CONDITION_MESSAGE)
    return State(found.status, "JobEnded", message)


def _state(sets: Sequence[ShardSet]) -> State:
    unfinished = [each for each in sets if not each.is_over or each.failed]
    status, reason = ConditionStatus.TRUE, "AllDone"
    message = "; ".join(_sentence(each) for each in sets)
    if any(each.failed for each in sets):
        status, reason = ConditionStatus.FALSE, "ElementsFailed"
        message = "; ".join(_sentence(each) for each in sets if each.failed)
    elif unfinished:
        status, reason = ConditionStatus.FALSE, PULLING
        named = (f"{each.definition.name!r} of {each.definition.size} elements" for each in unfinished)
        message = "not done yet: " + ", ".join(named)
    return State(status, reason, shortened(message, MAX_CONDITION_MESSAGE))


def _sentence(each: ShardSet) -> str:
    name, size = each.definition.name, each.definition.size
    if not each.failed:
        return f"shard set {name!r}: all {size} elements are done"
    so_far = "" if each.is_over else " so far"
    many = f"{each.done} of {size} elements are done{so_far}, {count(each.failed)} failed for good"
    return f"shard set {name!r}: {many}: {_named(each.failed)}{_because(each)}"


def _elements(number: int) -> str:
    return f"{number} element" if number == 1 else f"{number} elements"


def _named(elements: tuple[tuple[int, int], ...]) -> str:
    shown = first(elements, count(elements), NAMED)
    more = count(elements) - count(shown)
    which = "element" if count(elements) == 1 else "elements"
    return f"{which} {to_text(shown)}" + (f" and {more} more" if more else "")


def _because(each: ShardSet) -> str:
    return f"; the first: {each.reason}" if each.reason else ""
