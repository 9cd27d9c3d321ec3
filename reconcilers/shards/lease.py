"""Leases of a job's shard sets, as one pure function that decides which worker works on what next.

A status write carries the resourceVersion from which it was decided, so a range is leased once, or not at
all. A worker's report (`PullReport`) counts only for the lease whose number it names. Sizes follow factoring:
a lease is half of the remaining elements, divided by the workers (Flynn Hummel, Schonberg and Flynn, CACM
35(8), 1992); for short elements, it is work for three seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crds.intervals import NONE, Intervals, common, count, first, minus, union, whole
from crds.leases import Lease, leases_to_text
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_SETS
from crds.shard_set_status import MAX_LEASES_TEXT
from reconcilers.shards.sets import PullReport, SetState, ShardPullers, Tried, merged, nameless, part_of

FULL_TEXT = 12_000
"""Limit of characters of a set's leases, beyond which nothing is leased until some are done. Each write goes
to all agents that pull."""
MANY_LEASES = 500
"""Number of leases above which a lease shrinks by whole intervals only, so that its text stays short."""
MAX_LEASE_INTERVALS = 8
"""Limit of intervals in one grant."""
LEAST_SECONDS = 3.0
"""Least work of a lease, by the pace so far, and so the most by which workers end one after the other.

A lease is never more than an even share of the remaining elements. So if later elements are slower than the
pace so far, the result is guided self-scheduling at worst.
"""
_SURELY_FITTING = MAX_LEASES_TEXT // 52
"""Ranges in all leases of a set that always fit: one takes at most 39 bytes with its lease, 52 in base64."""
MAX_HISTORIES = 64
"""Limit of histories with workers; with more, only the number of an element's failures is kept."""


def lease(sets: Sequence[SetState], crew: ShardPullers, now: datetime) -> tuple[SetState, ...]:
    """The sets after the workers' reports, with leases to workers that want more."""
    by_name: dict[str, list[PullReport]] = {}
    for report in sorted(crew.reports, key=lambda report: report.worker):
        by_name.setdefault(report.definition.name, []).append(report)
    present = [_continued(each, by_name.get(each.definition.name, ()), crew, now) for each in sets]
    names = {each.definition.name for each in sets}
    begun = [
        _begun(reports, crew, now)
        for name, reports in sorted(by_name.items())
        if name not in names and any(crew.alive.get(v.worker) == v.incarnation for v in reports)
    ]
    found = []
    for each in [*present, *begun][:MAX_SHARD_SETS]:
        reports = by_name.get(each.definition.name, [])
        found.append(_fitting(_step(_restored(each, reports, crew), reports, crew, now)))
    return tuple(found)


def _begun(reports: Iterable[PullReport], crew: ShardPullers, now: datetime) -> SetState:
    """A new set, by the report of the first live worker."""
    report = next(v for v in reports if crew.alive.get(v.worker) == v.incarnation)
    return SetState(report.definition, whole(report.definition.size), started_at=now)


def _continued(state: SetState, reports: Iterable[PullReport], crew: ShardPullers, now: datetime) -> SetState:
    """The set, or its next epoch if this one is over and a worker requests that."""
    if not state.is_over or state.has_failed:
        return state
    later = [
        report
        for report in reports
        if report.definition.epoch > state.definition.epoch
        and crew.alive.get(report.worker) == report.incarnation
    ]
    if not later:
        return state
    epoch = min(report.definition.epoch for report in later)
    begun = _begun([report for report in later if report.definition.epoch == epoch], crew, now)
    return replace(begun, last_lease=state.last_lease, restoration=state.restoration, uid=state.uid)


def _restored(state: SetState, reports: Iterable[PullReport], crew: ShardPullers) -> SetState:
    """The set as a checkpoint has it, if a process that has loaded one requests that.

    All leases end: the checkpoint alone decides which of their elements are done. Lease numbers are unique,
    so that reports on old leases do not count.
    """
    asking = [
        report
        for report in reports
        if report.restoration > state.restoration
        and (report.definition.size, report.definition.digest)
        == (state.definition.size, state.definition.digest)
        and crew.alive.get(report.worker) == report.incarnation
    ]
    if not asking or state.has_failed:
        return state
    newest = max(asking, key=lambda report: report.restoration)  # those of one restoration are alike
    undone = minus(common(newest.undone, whole(state.definition.size)), state.failed)
    return replace(
        state,
        definition=replace(state.definition, epoch=newest.definition.epoch),
        restoration=newest.restoration,
        waiting=undone,
        leases=(),
        tried=(),
        again=(),
        finished_at=None,
    )


def _step(state: SetState, reports: Iterable[PullReport], crew: ShardPullers, now: datetime) -> SetState:
    spoken = {
        (report.worker, report.incarnation): report if report.uid == state.uid else _without_lease(report)
        for report in reports
        if report.definition == state.definition
    }
    settled = _settled(state, spoken, crew)
    if not settled.has_failed:
        numbers = {(each.worker, each.incarnation): each.number for each in state.leases}
        alive = [report for key, report in spoken.items() if crew.alive.get(key[0]) == key[1]]
        # A request from before the worker has seen its newest lease is answered by that lease.
        asking = [v for v in alive if v.wants and numbers.get((v.worker, v.incarnation), v.lease) == v.lease]
        pulling = frozenset(v.worker for v in alive if not v.leaves or (v.worker, v.incarnation) in numbers)
        least = _least(settled, len(pulling), now)
        settled = _fully_granted(settled, asking, pulling, crew, least)
    if settled.is_over and settled.finished_at is None:
        settled = replace(settled, finished_at=now)
    return settled


def _without_lease(report: PullReport) -> PullReport:
    """The report of a worker that has not seen this ShardSet, although it may have seen a deleted one."""
    return replace(report, lease=0, rest=NONE, failed=NONE)


def _fitting(state: SetState) -> SetState:
    """The set; without its leases, if these have more ranges than fit into a status."""
    if sum(len(each.elements) for each in state.leases) <= _SURELY_FITTING:
        return state
    return state if len(leases_to_text(state.leases)) <= MAX_LEASES_TEXT else _without_leases(state)


def _without_leases(state: SetState) -> SetState:
    """The set with all leased elements waiting again, so that ranges of several workers join. Elements that
    are being worked on are done twice."""
    leased = union(*(each.elements for each in state.leases))
    untried = minus(leased, union(*(each.elements for each in state.again)))
    return replace(
        state,
        waiting=union(state.waiting, untried),
        leases=(),
        tried=_few(merged([*state.tried, *state.again])),
        again=(),
    )


def _settled(state: SetState, spoken: Mapping[tuple[int, int], PullReport], crew: ShardPullers) -> SetState:
    """The set after the workers' reports on their leases, each of which counts once."""
    leases, waiting, tried = [], [state.waiting], list(state.tried)
    last_lease, reason, again = state.last_lease, state.reason, state.again
    for held in state.leases:
        report = spoken.get((held.worker, held.incarnation))
        about_it = report if report is not None and report.lease == held.number else None
        kept, returned, failed = _parts(held, about_it, state, crew)
        if kept and kept == held.elements:
            leases.append(held)
            continue
        if kept:
            last_lease += 1
            leases.append(replace(held, number=last_lease, elements=kept))
        if failed and about_it is not None:
            reason = reason or about_it.reason[:MAX_SHARD_REASON]
            before = part_of(again, failed)
            fresh = Tried((), minus(failed, union(*(each.elements for each in before))))
            tried += [Tried((*each.workers, held.worker), each.elements) for each in (*before, fresh)]
        before = part_of(again, returned)
        tried += before
        waiting.append(minus(returned, union(*(each.elements for each in before))))
    leased = union(*(each.elements for each in leases)) if again else NONE
    given_up = [each for each in tried if len(each.workers) > state.definition.retries]
    histories = merged(each for each in tried if len(each.workers) <= state.definition.retries)
    return replace(
        state,
        waiting=union(*waiting),
        leases=tuple(leases),
        tried=_few(histories),
        again=_few(part_of(again, leased)),
        failed=union(state.failed, *(each.elements for each in given_up)),
        last_lease=last_lease,
        reason=reason,
    )


def _parts(
    held: Lease, report: PullReport | None, state: SetState, crew: ShardPullers
) -> tuple[Intervals, Intervals, Intervals]:
    """The elements of a lease that stay leased, those that wait again, and those that failed; all others are
    done.

    Args:
        report: the worker's report on this lease.
    """
    is_silent = (held.worker, state.definition.name) in crew.silent
    is_there = crew.alive.get(held.worker) == held.incarnation and not is_silent
    if report is None:
        return (held.elements, NONE, NONE) if is_there else (NONE, held.elements, NONE)
    failed = common(held.elements, report.failed)
    rest = minus(common(held.elements, report.rest), failed)
    if not is_there or report.leaves:
        return NONE, rest, failed
    if not (report.wants or report.failed):
        return held.elements, NONE, NONE
    if not failed and len(state.leases) > MANY_LEASES:
        rest = tuple(each for each in held.elements if common((each,), rest))
    return rest, NONE, failed


def _fully_granted(
    state: SetState,
    asking: Sequence[PullReport],
    pulling: frozenset[int],
    crew: ShardPullers,
    least: int,
) -> SetState:
    """Lease to as many of the asking workers as the text has room for, those without a lease first."""
    holders = {each.worker for each in state.leases}
    asking = sorted(asking, key=lambda report: (report.worker in holders, report.worker))
    while True:
        found = _granted(state, asking, pulling, crew, least)
        if not asking or len(leases_to_text(found.leases)) <= FULL_TEXT:
            return found
        asking = asking[: len(asking) * 2 // 3]


def _least(state: SetState, pulling: int, now: datetime) -> int:
    """Number of elements that one worker does in `LEAST_SECONDS`; 0 while there is no pace."""
    if state.started_at is None or state.restoration or not pulling:
        return 0
    seconds = (now - state.started_at).total_seconds()
    return int(state.done * LEAST_SECONDS / (seconds * pulling)) if seconds > LEAST_SECONDS else 0


def _granted(
    state: SetState,
    asking: Sequence[PullReport],
    pulling: frozenset[int],
    crew: ShardPullers,
    least: int,
) -> SetState:
    """Lease to the asking workers, in this order.

    Args:
        least: minimum of elements in a lease, unless some workers would then have none.
    """
    held = {each.worker: each for each in state.leases}
    shares = 2 * max(len(pulling), crew.members, 1)
    waiting, tried, again, last_lease = state.waiting, state.tried, [*state.again], state.last_lease
    left = count(waiting) + state.to_try_again
    # A worker that wants more before all others have begun gets only its part, since elements may take hours.
    part = -(-2 * (left + sum(count(each.elements) for each in state.leases)) // shares)
    for report in asking:
        before = held.get(report.worker)
        room = part - (count(before.elements) if before else 0)
        most = max(-(-left // shares), min(least, 2 * left // shares))
        taken = _to_try(tried, report, pulling, most)
        retaken = union(*(each.elements for each in taken))
        fresh = first(waiting, min(most, room) - count(retaken), MAX_LEASE_INTERVALS)
        if not (retaken or fresh):
            continue
        if retaken:
            tried = merged(Tried(each.workers, minus(each.elements, retaken)) for each in tried)
        waiting = minus(waiting, fresh)
        again += taken
        left -= count(retaken) + count(fresh)
        last_lease += 1
        elements = union(before.elements if before else NONE, retaken, fresh)
        held[report.worker] = Lease(report.worker, report.incarnation, last_lease, elements)
    leases = tuple(held[worker] for worker in sorted(held))
    return replace(
        state, waiting=waiting, leases=leases, tried=tried, again=_few(merged(again)), last_lease=last_lease
    )


def _few(histories: tuple[Tried, ...]) -> tuple[Tried, ...]:
    return histories if len(histories) <= MAX_HISTORIES else nameless(histories)


def _to_try(
    tried: Iterable[Tried], report: PullReport, pulling: frozenset[int], most: int
) -> tuple[Tried, ...]:
    """Failed elements for this worker to retry: other workers' first, its own only if all have tried them.

    Elements that it still reports as failed are left out: its agent would take the next lease of them for
    failed, too. A lease without them acknowledges its report.

    Args:
        most: limit of elements.
    """
    taken: list[Tried] = []
    for each in tried:
        if report.worker not in each.workers or pulling <= set(each.workers):
            part = first(minus(each.elements, report.failed), most, MAX_LEASE_INTERVALS)
            most -= count(part)
            taken.append(Tried(each.workers, part))
    return merged(taken)
