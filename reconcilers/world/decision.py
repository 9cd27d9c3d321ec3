"""The decision about a job's world: `decide`, in which everything that limits it is an argument. Pure.

A world is proposed for the people who are there (`propose`), if possible without workers on slow nodes. Then
it is admitted, or not yet: no world is formed while an object claims workers, nor with workers that are to be
vetted first (`vetting.py`), and none replaces a broken one while its failure is looked into.
What is decided says why, once, at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous, Resume
from crds.texts import shortened
from reconcilers.failure.facts import Blame, Break, Hold
from reconcilers.observed.slots import named
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import (
    MAX_BREAKS,
    Decision,
    awaiting_checkpoint,
    broken_members,
    checkpoint_wait,
    form,
    given_up,
    is_ending,
    last_call,
    leaves_dead_peers,
    propose,
)
from reconcilers.world.vetting import Claim


@dataclass(frozen=True)
class Settled:
    participants: Sequence[Participant]
    """The participants that count; those that go without a world are marked as leaving."""
    look_again_seconds: float | None = None
    awaits_checkpoint: bool = False


def settle(
    published: Rendezvous, participants: Sequence[Participant], bounds: Bounds, now: datetime
) -> Settled:
    """A target that is not ready does not count yet; one that is takes over, unless its source trains.

    Then it waits for other targets on their way and for the next checkpoint, as newcomers do; and as long as
    the world is ending, or would be smaller without the source.
    """
    targets = [p for p in participants if p.replaces is not None]
    if not targets:
        return Settled(participants)
    ready = {p.index for p in targets if p.joinable}
    trains = _trains(published, participants)
    patient = {p.index for p in targets if p.index in ready and p.replaces in trains}
    eager = _with(participants, ready - patient)
    if not patient:
        return Settled(eager)
    people = _with(participants, ready)
    if broken_members(published, eager):
        return Settled(people)  # there is a new round anyway
    if is_ending(published, participants) or _would_shrink(published, people, bounds):
        return Settled(eager)
    newcomers = [p for p in targets if p.index in patient]
    on_the_way = any(p.index not in ready and p.replaces in trains for p in targets)
    for_checkpoint = checkpoint_wait(published, participants, newcomers, bounds, now)
    wait = max(last_call(newcomers, bounds) if on_the_way else 0.0, for_checkpoint)
    awaits = for_checkpoint > 0 or published.checkpoint_awaited_since is not None
    return Settled(eager, wait, awaits) if wait > 0 else Settled(people)


def _trains(published: Rendezvous, participants: Sequence[Participant]) -> frozenset[int]:
    """The members that are in their world as they should be."""
    if published.phase is not RendezvousPhase.FORMED:
        return frozenset()
    return frozenset(published.members) - {b.index for b in broken_members(published, participants)}


def _with(participants: Sequence[Participant], targets: Collection[int]) -> list[Participant]:
    """Return the participants with these targets in place of their sources, without the other targets."""
    places = {p.replaces: p.index for p in participants if p.index in targets}
    return [
        replace(p, leaving=f"worker {places[p.index]} takes the place of worker {p.index}")
        if p.index in places
        else p
        for p in participants
        if p.replaces is None or p.index in targets
    ]


def _would_shrink(published: Rendezvous, people: Sequence[Participant], bounds: Bounds) -> bool:
    """Whether the world would lose more than those who leave it: not all who stay need be there any more."""
    members = set(published.members)
    stays = all(p.joinable or p.leaving for p in people if p.index in members)
    return not stays or bounds.floor(sum(p.joinable for p in people)) < len(members)


FORMED, REFORMING, FORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING, RendezvousPhase.FORMING


@dataclass(frozen=True)
class Constraints:
    """What limits the next world, beside its people and its bounds."""

    slow: frozenset[int] = frozenset()
    """Workers on slow nodes: no members, where the others make an allowed world."""
    unvetted: frozenset[int] = frozenset()
    """Workers to be tested before a world is formed with them."""
    claim: Claim | None = None
    claim_has_ended: bool = False
    """A claim has just ended, so a replacement gets its whole time from now on."""
    request_refused: bool = False
    """The API server does not take the request to test workers, so the world is formed without."""
    hold: Hold | None = None
    hang_since: datetime | None = None
    """Time since which the members of a broken world are asked where they hang."""
    blame: Blame | None = None
    resumed: Resume | None = None
    """The checkpoint that the published round goes on from, by rank 0's report."""


FREE = Constraints()


def decide(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    constraints: Constraints = FREE,
    breaks: Sequence[Break] | None = None,
) -> Decision:
    """Decides which world to publish, and which workers have to be vetted before the next.

    Args:
        breaks: `broken_members` of these participants, if they are at hand.
    """
    if constraints.claim_has_ended and published.phase is REFORMING:
        published = published.model_copy(update={"reforming_since": now})
    claim = constraints.claim
    replacing = _replacing(published, participants, bounds, now, constraints)
    people, decision = replacing or _proposal(published, participants, bounds, now, constraints.slow, breaks)
    if claim is not None and replacing is None:
        decision = _during(claim, published, decision, people, now)
    elif not constraints.request_refused and (
        first := _to_vet(published, decision, people, constraints.unvetted)
        or _to_vet_meanwhile(published, participants, bounds, now, constraints)
    ):
        decision = replace(_without_new_world(published, decision, now), to_vet=first)
    else:
        if not constraints.request_refused:
            decision = _vetting_idle(published, decision, people, bounds, constraints.unvetted)
        decision = _held(published, decision, constraints.hold, now)
    return replace(decision, rendezvous=_explained(published, decision.rendezvous, constraints))


def blaming(world: Rendezvous, blame: Blame | None) -> Rendezvous:
    """The world, whose reason names the first to fail where the round just before it broke.

    Without that, the reason names the first that reported; of a hang, that is mostly a rank that waits.
    """
    before = world.round - 1 if world.phase is FORMED else world.round
    if blame is None or blame.round != before or world.phase is FORMING:
        return world
    return world.model_copy(update={"reason": shortened(blame.line, MAX_BREAKS)})


def resumed(published: Rendezvous, workers: Workers) -> Resume | None:
    """The checkpoint that the published round goes on from, by rank 0's report; None before that.

    Its agents agree upon it when they meet (`agent/slots/resume.py`), and it is published for people alone.
    """
    if published.phase is not RendezvousPhase.FORMED or not published.members:
        return None
    rank_0 = workers.rank_0(published)
    report = rank_0.status.agent if rank_0 is not None else None
    found = report.memory.resumed if report is not None and report.memory is not None else None
    if found is None or found.round != published.round:
        return None
    return Resume(step=found.step, tier=found.tier)


# --- the proposal: a world of these people ----------------------------------------------------------------

_Proposal = tuple[Sequence[Participant], Decision]
"""The participants that count, with those marked that leave for another's sake; and the world of them."""


def _proposal(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    slow: Collection[int],
    breaks: Sequence[Break] | None = None,
) -> _Proposal:
    """A worker on a slow node that takes another's place keeps it: the world would be smaller without."""
    settled = settle(published, participants, bounds, now)
    people = settled.participants
    slow = frozenset(slow).difference(p.index for p in people if p.replaces is not None)
    breaks = breaks if people is participants else None
    decision = _without_slow(published, people, bounds, now, slow, breaks)
    decision = _sooner(decision, settled.look_again_seconds)
    world = decision.rendezvous
    if settled.awaits_checkpoint and world.round == published.round and published.phase is FORMED:
        since = published.checkpoint_awaited_since or now
        decision = replace(decision, rendezvous=awaiting_checkpoint(world, since))
    return people, decision


def _without_slow(
    published: Rendezvous,
    people: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    slow: Collection[int],
    breaks: Sequence[Break] | None,
) -> Decision:
    """Judges without the slow that could join, where the others make an allowed world.

    A world that stands is not given up for that. Members that leave for it stay in sight, so that nobody
    waits for their replacement.
    """
    out: frozenset[int] = frozenset()
    if slow and bounds.floor(sum(p.joinable for p in people if p.index not in slow)):
        out = frozenset(p.index for p in people if p.index in slow and p.joinable)
    members = published.members if published.phase is FORMED else ()
    left_out = out.difference(members)
    breaks = None if left_out else breaks
    decision = propose(published, _leaving(people, left_out), bounds.without(len(left_out)), now, breaks)
    if published.phase is not FORMED or not _is_new(published, decision):
        return replace(decision, left_out=left_out)
    world = decision.rendezvous
    if out & set(world.members):
        joinable = [p for p in _leaving(people, out) if p.joinable]
        lean = form(published, joinable, bounds.without(len(out)), world.reason, now, keep=set(members))
        world = lean.model_copy(update={"broken_round": world.broken_round})
    return replace(decision, rendezvous=world, left_out=out)


def _leaving(people: Sequence[Participant], out: frozenset[int]) -> Sequence[Participant]:
    marks = {index: "its node is slow" for index in out}
    return [replace(p, leaving=marks[p.index]) if p.index in marks else p for p in people] if out else people


def _replacing(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    constraints: Constraints,
) -> _Proposal | None:
    """A full world in place of a broken one, of workers that the claim does not test.

    While only idle workers are tested, others that stand by may step in.
    """
    claim = constraints.claim
    if claim is None or not bounds.standby or any(map(claim.tests, published.members)):
        return None
    untested = [
        replace(p, leaving=f"{claim.name} tests it") if claim.tests(p.index) else p for p in participants
    ]
    people, decision = _proposal(published, untested, bounds, now, constraints.slow)
    is_broken = decision.broken or published.phase is REFORMING
    is_full = len(decision.rendezvous.members) >= bounds.desired
    if not is_broken or not is_full or not _is_new(published, decision):
        return None
    needs_vetting = _to_vet(published, decision, people, constraints.unvetted)
    return None if needs_vetting else (people, decision)


# --- whether it is formed now -----------------------------------------------------------------------------


def _is_new(published: Rendezvous, decision: Decision) -> bool:
    """Whether another world than the published one is formed."""
    world = decision.rendezvous
    return world.phase is FORMED and world.round != published.round


def _without_new_world(published: Rendezvous, decision: Decision, now: datetime) -> Decision:
    """The decision without the world that it forms; that the old one broke, and why, stays."""
    if not _is_new(published, decision):
        return replace(decision, look_again_seconds=None)
    if not decision.broken:
        return replace(decision, rendezvous=published, breaks=(), look_again_seconds=None)
    broken = leaves_dead_peers(decision.breaks)
    waiting = given_up(published, decision.rendezvous.reason, now, broken=broken)
    return replace(decision, rendezvous=waiting, look_again_seconds=None)


def _during(
    claim: Claim,
    published: Rendezvous,
    decision: Decision,
    people: Sequence[Participant],
    now: datetime,
) -> Decision:
    """No world is formed, and one of which a member is tested is given up, unless training is ending."""
    tested = [member for member in published.members if claim.tests(member)]
    stands = published.phase is FORMED and not decision.broken
    if not stands or not tested or is_ending(published, people):
        return _without_new_world(published, decision, now)
    world = given_up(published, f"{claim} tests {named(tested)}", now)
    return Decision(world, left_out=decision.left_out)


def _to_vet(
    published: Rendezvous, decision: Decision, people: Sequence[Participant], unvetted: frozenset[int]
) -> tuple[int, ...]:
    """The workers to vet before this world may form. Members that train on are not tested again."""
    if not _is_new(published, decision):
        return ()
    grows = published.phase is FORMED and not decision.broken
    old = set(published.members) if grows else set()
    if not unvetted & (set(decision.rendezvous.members) - old):
        return ()
    return tuple(p.index for p in people if p.joinable and p.index not in old)


def _to_vet_meanwhile(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    now: datetime,
    constraints: Constraints,
) -> tuple[int, ...]:
    """The workers to vet before the world that forms once all Pods that leave have left."""
    if not constraints.unvetted or not any(p.leaving_pod for p in participants):
        return ()
    left = [replace(p, leaving_pod="") for p in participants]
    people, decision = _proposal(published, left, bounds, now, constraints.slow)
    return _to_vet(published, decision, people, constraints.unvetted)


def _vetting_idle(
    published: Rendezvous,
    decision: Decision,
    people: Sequence[Participant],
    bounds: Bounds,
    unvetted: frozenset[int],
) -> Decision:
    """The decision to vet standby workers beside a complete world; workers that come together share
    one, so it waits for the last call."""
    world = decision.rendezvous
    stands = world.phase is FORMED and world.round == published.round
    if not bounds.standby or not stands or len(world.members) < bounds.desired:
        return decision
    beside = [p for p in people if p.index not in world.members and p.alive]
    new = [p for p in beside if p.joinable and p.index in unvetted]
    if not new or is_ending(published, people):
        return decision
    wait = last_call(new, bounds) if any(p.report is None for p in beside) else 0.0
    if wait > 0:
        return _sooner(decision, wait)
    return replace(decision, to_vet=tuple(p.index for p in new))


def _held(published: Rendezvous, decision: Decision, hold: Hold | None, now: datetime) -> Decision:
    """No world replaces a broken one before the hold ends; one that stands may grow."""
    wait = 0.0 if hold is None else (hold.until - now).total_seconds()
    stands = published.phase is FORMED and not decision.broken
    if hold is None or wait <= 0 or stands or not _is_new(published, decision):
        return decision
    kept = _without_new_world(published, decision, now)
    world = kept.rendezvous.model_copy(update={"waits_for": f"the next world waits {hold.reason}"})
    return replace(kept, rendezvous=world, look_again_seconds=wait)


def _explained(published: Rendezvous, world: Rendezvous, constraints: Constraints) -> Rendezvous:
    """The world with the first to fail in its reason, what is asked of its members, and its checkpoint."""
    world = blaming(world, constraints.blame)
    if world.phase is REFORMING and world.hang_since != constraints.hang_since:
        return world.model_copy(update={"hang_since": constraints.hang_since})
    is_resumed = constraints.resumed is not None and world.resume is None
    if is_resumed and world.phase is FORMED and world.round == published.round:
        return world.model_copy(update={"resume": constraints.resumed})
    return world


def _sooner(decision: Decision, seconds: float | None) -> Decision:
    """The decision, with another look after so many seconds at the latest."""
    if seconds is None:
        return decision
    before = decision.look_again_seconds
    return replace(decision, look_again_seconds=seconds if before is None else min(before, seconds))
