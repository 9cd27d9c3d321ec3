"""Leases of a job's shard sets, as one pure function: which worker works on what next.

A status write carries the resourceVersion that it was decided from, so a range is given out once, or not at
all. What workers report (`Voice`) counts only for the lease whose number it names. Sizes follow factoring: a
lease is half of what is left, divided by the workers (Flynn Hummel, Schonberg and Flynn, CACM 35(8), 1992);
where elements are short, work for three seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crds.intervals import NONE, Intervals, common, count, first, minus, union, whole
from crds.leases import Lease, leases_to_text
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_SETS
from crds.shard_set_status import MAX_LEASES_TEXT
from reconcilers.shards.sets import SetState, ShardPullers, Tried, Voice, merged, nameless, part_of

FULL_TEXT = 12_000
"""Characters of a set's leases: beyond them nothing is leased until some are done. Each write goes to all
agents that pull."""
MANY_LEASES = 500
"""With more of them, what is done of a lease counts by whole grants, so that leases stay short to name."""
MAX_LEASE_INTERVALS = 8
"""Of one grant. What is scattered more goes to several."""
LEAST_SECONDS = 3.0
"""No lease is for less work than that, by the pace so far. By so much workers may end one after the other.

A lease is never more than an even share of what is left. So where later elements are slower than the pace
says, it is guided self-scheduling at worst.
"""
_SURELY_FITTING = MAX_LEASES_TEXT // 52
"""Ranges in all leases of a set. One has at most 39 bytes with a lease of its own, and 52 in base64."""
MAX_HISTORIES = 64
"""With more of them, it is kept no longer who an element failed on, but only how often."""


def lease(sets: Sequence[SetState], crew: ShardPullers, now: datetime) -> tuple[SetState, ...]:
    """The sets after what the workers say, with what is given out to those that want more."""
    by_name: dict[str, list[Voice]] = {}
    for voice in sorted(crew.voices, key=lambda voice: voice.worker):
        by_name.setdefault(voice.definition.name, []).append(voice)
    known = [_continued(each, by_name.get(each.definition.name, ()), crew, now) for each in sets]
    names = {each.definition.name for each in sets}
    begun = [
        _begun(voices, crew, now)
        for name, voices in sorted(by_name.items())
        if name not in names and any(crew.alive.get(v.worker) == v.incarnation for v in voices)
    ]
    found = []
    for each in [*known, *begun][:MAX_SHARD_SETS]:
        voices = by_name.get(each.definition.name, [])
        found.append(_fitting(_step(_restored(each, voices, crew), voices, crew, now)))
    return tuple(found)


def _begun(voices: Iterable[Voice], crew: ShardPullers, now: datetime) -> SetState:
    """A set as the first worker that lives names it."""
    voice = next(v for v in voices if crew.alive.get(v.worker) == v.incarnation)
    return SetState(voice.definition, whole(voice.definition.size), started_at=now)


def _continued(known: SetState, voices: Iterable[Voice], crew: ShardPullers, now: datetime) -> SetState:
    """The set, or its next epoch if this one is over and somebody asks for that."""
    if not known.is_over or known.has_failed:
        return known
    later = [
        voice
        for voice in voices
        if voice.definition.epoch > known.definition.epoch
        and crew.alive.get(voice.worker) == voice.incarnation
    ]
    if not later:
        return known
    epoch = min(voice.definition.epoch for voice in later)
    begun = _begun([voice for voice in later if voice.definition.epoch == epoch], crew, now)
    return replace(begun, last_lease=known.last_lease, restoration=known.restoration, uid=known.uid)


def _restored(known: SetState, voices: Iterable[Voice], crew: ShardPullers) -> SetState:
    """The set as a checkpoint has it, if a process that went back to one asks for that.

    Nobody's lease goes on: what was done of it is done or undone by the checkpoint alone. Numbers of leases
    are given once, so what is said of the old ones counts no more.
    """
    asking = [
        voice
        for voice in voices
        if voice.restoration > known.restoration
        and (voice.definition.size, voice.definition.digest)
        == (known.definition.size, known.definition.digest)
        and crew.alive.get(voice.worker) == voice.incarnation
    ]
    if not asking or known.has_failed:
        return known
    newest = max(asking, key=lambda voice: voice.restoration)  # of several, the first: they say the same
    undone = minus(common(newest.undone, whole(known.definition.size)), known.failed)
    return replace(
        known,
        definition=replace(known.definition, epoch=newest.definition.epoch),
        restoration=newest.restoration,
        waiting=undone,
        leases=(),
        tried=(),
        again=(),
        finished_at=None,
    )


def _step(known: SetState, voices: Iterable[Voice], crew: ShardPullers, now: datetime) -> SetState:
    spoken = {
        (voice.worker, voice.incarnation): voice if voice.uid == known.uid else _without_lease(voice)
        for voice in voices
        if voice.definition == known.definition
    }
    settled = _settled(known, spoken, crew)
    if not settled.has_failed:
        numbers = {(each.worker, each.incarnation): each.number for each in known.leases}
        alive = [voice for key, voice in spoken.items() if crew.alive.get(key[0]) == key[1]]
        # A lease that its holder does not know of yet is the answer to what it asked for.
        asking = [v for v in alive if v.wants and numbers.get((v.worker, v.incarnation), v.lease) == v.lease]
        pulling = frozenset(v.worker for v in alive if not v.leaves or (v.worker, v.incarnation) in numbers)
        least = _least(settled, len(pulling), now)
        settled = _fully_granted(settled, asking, pulling, crew, least)
    if settled.is_over and settled.finished_at is None:
        settled = replace(settled, finished_at=now)
    return settled


def _without_lease(voice: Voice) -> Voice:
    """What a worker says that has yet to see this ShardSet, though it may know one that was deleted."""
    return replace(voice, lease=0, rest=NONE, failed=NONE)


def _fitting(known: SetState) -> SetState:
    """The set, without its leases where they are scattered over more ranges than a status can name."""
    if sum(len(each.elements) for each in known.leases) <= _SURELY_FITTING:
        return known
    return known if len(leases_to_text(known.leases)) <= MAX_LEASES_TEXT else _without_leases(known)


def _without_leases(known: SetState) -> SetState:
    """What was leased waits again, where ranges of several workers join. Elements that a worker was at are
    done twice."""
    leased = union(*(each.elements for each in known.leases))
    untried = minus(leased, union(*(each.elements for each in known.again)))
    return replace(
        known,
        waiting=union(known.waiting, untried),
        leases=(),
        tried=_few(merged([*known.tried, *known.again])),
        again=(),
    )


def _settled(known: SetState, spoken: Mapping[tuple[int, int], Voice], crew: ShardPullers) -> SetState:
    """What workers say of their leases, taken over once."""
    leases, waiting, tried = [], [known.waiting], list(known.tried)
    last_lease, reason = known.last_lease, known.reason
    again = known.again
    for held in known.leases:
        voice = spoken.get((held.worker, held.incarnation))
        if voice is not None and voice.lease != held.number:
            voice = None  # of an earlier lease
        is_silent = (held.worker, known.definition.name) in crew.silent
        is_there = crew.alive.get(held.worker) == held.incarnation and not is_silent
        ended = not is_there or (voice is not None and voice.leaves)
        if not ended and (voice is None or not (voice.wants or voice.failed)):
            leases.append(held)
            continue
        failed = common(held.elements, voice.failed) if voice else NONE
        rest = minus(common(held.elements, voice.rest), failed) if voice else held.elements
        if failed and voice is not None:
            reason = reason or voice.reason[:MAX_SHARD_REASON]
            histories = part_of(again, failed)
            fresh = Tried((), minus(failed, union(*(each.elements for each in histories))))
            tried += [Tried((*each.workers, held.worker), each.elements) for each in (*histories, fresh)]
        if ended:
            histories = part_of(again, rest)
            tried += histories
            waiting.append(minus(rest, union(*(each.elements for each in histories))))
        elif (rest := _kept(held, rest, failed, known)) != held.elements:
            last_lease += 1
            leases += [replace(held, number=last_lease, elements=rest)] if rest else []
        else:
            leases.append(held)
    leased = union(*(each.elements for each in leases)) if again else NONE
    given_up = [each for each in tried if len(each.workers) > known.definition.retries]
    histories = merged(each for each in tried if len(each.workers) <= known.definition.retries)
    return replace(
        known,
        waiting=union(*waiting),
        leases=tuple(leases),
        tried=_few(histories),
        again=_few(part_of(again, leased)),
        failed=union(known.failed, *(each.elements for each in given_up)),
        last_lease=last_lease,
        reason=reason,
    )


def _kept(held: Lease, rest: Intervals, failed: Intervals, known: SetState) -> Intervals:
    """What goes on to be leased of a lease whose `rest` is not done."""
    if failed or len(known.leases) <= MANY_LEASES:
        return rest
    return tuple(each for each in held.elements if common((each,), rest))


def _fully_granted(
    known: SetState,
    asking: Sequence[Voice],
    pulling: frozenset[int],
    crew: ShardPullers,
    least: int,
) -> SetState:
    """Leases more to as many of those that ask as can be named, those without a lease first."""
    holders = {each.worker for each in known.leases}
    asking = sorted(asking, key=lambda voice: (voice.worker in holders, voice.worker))
    while True:
        found = _granted(known, asking, pulling, crew, least)
        if not asking or len(leases_to_text(found.leases)) <= FULL_TEXT:
            return found
        asking = asking[: len(asking) * 2 // 3]


def _least(known: SetState, pulling: int, now: datetime) -> int:
    """The elements that one worker does in `LEAST_SECONDS`; 0 where the pace is not known."""
    if known.started_at is None or known.restoration or not pulling:
        return 0
    seconds = (now - known.started_at).total_seconds()
    return int(known.done * LEAST_SECONDS / (seconds * pulling)) if seconds > LEAST_SECONDS else 0


def _granted(
    known: SetState,
    asking: Sequence[Voice],
    pulling: frozenset[int],
    crew: ShardPullers,
    least: int,
) -> SetState:
    """Leases more to those that ask, in this order.

    Args:
        least: elements of a lease, unless then some would have none.
    """
    held = {each.worker: each for each in known.leases}
    shares = 2 * max(len(pulling), crew.members, 1)
    waiting, tried, again, last_lease = known.waiting, known.tried, [*known.again], known.last_lease
    left = count(waiting) + known.to_try_again
    # Who could do with more before all others have begun gets no more than its part: elements may take hours.
    part = -(-2 * (left + sum(count(each.elements) for each in known.leases)) // shares)
    for voice in asking:
        before = held.get(voice.worker)
        room = part - (count(before.elements) if before else 0)
        most = max(-(-left // shares), min(least, 2 * left // shares))
        taken = _to_try(tried, voice, pulling, most)
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
        held[voice.worker] = Lease(voice.worker, voice.incarnation, last_lease, elements)
    leases = tuple(held[worker] for worker in sorted(held))
    return replace(
        known, waiting=waiting, leases=leases, tried=tried, again=_few(merged(again)), last_lease=last_lease
    )


def _few(histories: tuple[Tried, ...]) -> tuple[Tried, ...]:
    return histories if len(histories) <= MAX_HISTORIES else nameless(histories)


def _to_try(tried: Iterable[Tried], voice: Voice, pulling: frozenset[int], most: int) -> tuple[Tried, ...]:
    """Failed elements for this worker: those of others; its own only where all have tried them.

    What it still says has failed is not for it yet, though the job has heard it: its agent would take the
    next lease of that for failed, too. One without it tells the agent that it was heard.

    Args:
        most: how many.
    """
    taken: list[Tried] = []
    for each in tried:
        if voice.worker not in each.workers or pulling <= set(each.workers):
            part = first(minus(each.elements, voice.failed), most, MAX_LEASE_INTERVALS)
            most -= count(part)
            taken.append(Tried(each.workers, part))
    return merged(taken)
