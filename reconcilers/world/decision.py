"""The decision about a job's world: `decide`, in which everything that limits it is an argument. Pure.

A world is proposed for the present participants (`propose`), if possible without workers on slow nodes. Then
it is admitted or put off: no world is formed while an object claims workers, nor with workers that have to be
vetted first (`vetting.py`), and none replaces a broken one while its failure is examined. The reason of the
decision is set once, at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous, Resume
from crds.texts import shortened
from reconcilers.failure.facts import Blame, Hold
from reconcilers.observed.slots import named
from reconcilers.observed.workers import Workers
from reconcilers.world.domains import in_whole_units
from reconcilers.world.rendezvous import (
    MAX_BREAKS,
    Assembly,
    Decision,
    awaiting_checkpoint,
    checkpoint_wait,
    form,
    last_call,
    leaves_dead_peers,
    propose,
    reforming,
)
from reconcilers.world.vetting import Claim


def settle(there: Assembly) -> tuple[Assembly, float, bool]:
    """Decide for each moving slot whether its source or its target counts.

    A target that is not ready does not count yet. A ready one takes over at once, unless its source trains.
    Then it waits for other targets on their way and for the next checkpoint, as newcomers do, and as long as
    the world is ending, or would be smaller without the source.

    Returns:
        The participants that count, with replaced sources marked as leaving; the seconds for which a target
        waits; and whether it waits for a checkpoint.
    """
    targets = [p for p in there.participants if p.replaces is not None]
    if not targets:
        return there, 0.0, False
    ready = {p.index for p in targets if p.joinable}
    trains = there.members - {b.index for b in there.breaks} if there.is_formed else frozenset[int]()
    patient = {p.index for p in targets if p.index in ready and p.replaces in trains}
    eager = _with(there, ready - patient)
    if not patient:
        return eager, 0.0, False
    all_ready = _with(there, ready)
    if eager.breaks:
        return all_ready, 0.0, False  # there is a new round anyway
    if there.is_ending or _would_shrink(all_ready):
        return eager, 0.0, False
    newcomers = [p for p in targets if p.index in patient]
    on_the_way = any(p.index not in ready and p.replaces in trains for p in targets)
    for_checkpoint = checkpoint_wait(there, newcomers)
    wait = max(last_call(newcomers, there.bounds) if on_the_way else 0.0, for_checkpoint)
    awaits = for_checkpoint > 0 or there.published.checkpoint_awaited_since is not None
    return (eager, wait, awaits) if wait > 0 else (all_ready, 0.0, False)


def _with(there: Assembly, targets: Collection[int]) -> Assembly:
    """Return the assembly with these targets in place of their sources, without the other targets."""
    places = {p.replaces: p.index for p in there.participants if p.index in targets}
    participants = [
        replace(p, leaving=f"worker {places[p.index]} takes the place of worker {p.index}")
        if p.index in places
        else p
        for p in there.participants
        if p.replaces is None or p.index in targets
    ]
    return replace(there, participants=participants)


def _would_shrink(there: Assembly) -> bool:
    """Whether the world would become smaller, or a member that stays cannot join the next one."""
    stays = all(p.joinable or p.leaving for p in there.participants if p.index in there.members)
    return not stays or there.size < len(there.members)


FORMED, REFORMING, FORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING, RendezvousPhase.FORMING


@dataclass(frozen=True)
class Constraints:
    """Limits of the next world, beside its participants and its bounds."""

    slow: frozenset[int] = frozenset()
    """Workers on slow nodes, which are left out if the others make an allowed world."""
    unvetted: frozenset[int] = frozenset()
    """Workers to test before a world is formed with them."""
    claim: Claim | None = None
    claim_has_ended: bool = False
    """Whether a claim has just ended, so that a replacement gets its whole time from now on."""
    request_refused: bool = False
    """Whether the API server refused the check of workers, so that the world is formed without it."""
    hold: Hold | None = None
    hang_since: datetime | None = None
    """Time since which the members of a broken world are asked where they hang."""
    blame: Blame | None = None
    resumed: Resume | None = None
    """The checkpoint from which the published round goes on, by rank 0's report."""


FREE = Constraints()


def decide(there: Assembly, constraints: Constraints = FREE) -> Decision:
    """Decide which world to publish, and which workers to vet before the next."""
    if constraints.claim_has_ended and there.published.phase is REFORMING:
        published = there.published.model_copy(update={"reforming_since": there.now})
        there = replace(there, published=published)
    claim, unvetted = constraints.claim, constraints.unvetted
    replacing = _replacing(there, constraints)
    settled, decision = replacing or _proposal(there, constraints.slow)
    if claim is not None and replacing is None:
        decision = _during(claim, settled, decision)
    elif not constraints.request_refused and (
        first := _to_vet(settled, decision, unvetted) or _to_vet_meanwhile(there, constraints)
    ):
        decision = replace(_without_new_world(there, decision), to_vet=first)
    else:
        if not constraints.request_refused:
            decision = _vetting_idle(settled, decision, unvetted)
        decision = _held(there, decision, constraints.hold)
    return replace(decision, rendezvous=_explained(there.published, decision.rendezvous, constraints))


def blaming(world: Rendezvous, blame: Blame | None) -> Rendezvous:
    """Return the world with the first failure of the round just before it as its reason, if there is one.

    Otherwise the reason names the worker that reported first, which in a hang is mostly a rank that waits.
    """
    before = world.round - 1 if world.phase is FORMED else world.round
    if blame is None or blame.round != before or world.phase is FORMING:
        return world
    return world.model_copy(update={"reason": shortened(blame.line, MAX_BREAKS)})


def resumed(published: Rendezvous, workers: Workers) -> Resume | None:
    """Return the checkpoint from which the published round goes on, by rank 0's report; None before that.

    The agents agree on it when they meet (`agent/slots/resume.py`); it is published only for people to read.
    """
    if published.phase is not RendezvousPhase.FORMED or not published.members:
        return None
    rank_0 = workers.rank_0(published)
    report = rank_0.status.agent if rank_0 is not None else None
    found = report.memory.resumed if report is not None and report.memory is not None else None
    if found is None or found.round != published.round:
        return None
    return Resume(step=found.step, tier=found.tier)


# --- the proposal: a world of these participants ----------------------------------------------------------

_Proposal = tuple[Assembly, Decision]
"""The participants that count, with replaced ones marked as leaving; and their world."""


def _proposal(there: Assembly, slow: Collection[int]) -> _Proposal:
    """Propose a world. A worker on a slow node that takes another's place is kept, to keep the size."""
    there, wait, awaits_checkpoint = settle(there)
    slow = frozenset(slow).difference(p.index for p in there.participants if p.replaces is not None)
    decision = _sooner(_without_slow(there, slow), wait or None)
    world, published = decision.rendezvous, there.published
    if awaits_checkpoint and world.round == published.round and there.is_formed:
        since = published.checkpoint_awaited_since or there.now
        decision = replace(decision, rendezvous=awaiting_checkpoint(world, since))
    return there, decision


def _without_slow(there: Assembly, slow: Collection[int]) -> Decision:
    """Propose a world without slow workers, if the others make an allowed world.

    A formed world does not end for that. Slow members stay in the assembly, marked as leaving, so that no
    replacement is awaited.
    """
    out: frozenset[int] = frozenset()
    others = [p for p in there.joinable if p.index not in slow]
    if slow and there.bounds.floor(in_whole_units(others, there.bounds.node_unit)):
        out = frozenset(p.index for p in there.joinable if p.index in slow)
    left_out = out.difference(there.members if there.is_formed else ())
    decision = propose(_leaving(there, left_out))
    if not there.is_formed or not _is_new(there, decision):
        return replace(decision, left_out=left_out)
    world = decision.rendezvous
    if out.intersection(world.members):
        lean = form(_leaving(there, out), world.reason)
        world = lean.model_copy(update={"broken_round": world.broken_round})
    return replace(decision, rendezvous=world, left_out=out)


def _leaving(there: Assembly, out: frozenset[int]) -> Assembly:
    if not out:
        return there
    participants = [
        replace(p, leaving="its node is slow") if p.index in out else p for p in there.participants
    ]
    return replace(there, participants=participants, bounds=there.bounds.without(len(out)))


def _replacing(there: Assembly, constraints: Constraints) -> _Proposal | None:
    """Return a full world of workers that the claim does not test, in place of a broken one; else None.

    While only idle workers are tested, other standby workers may step in.
    """
    claim = constraints.claim
    if claim is None or not there.bounds.standby or any(map(claim.tests, there.members)):
        return None
    untested = [
        replace(p, leaving=f"{claim.name} tests it") if claim.tests(p.index) else p
        for p in there.participants
    ]
    there, decision = _proposal(replace(there, participants=untested), constraints.slow)
    is_broken = decision.broken or there.published.phase is REFORMING
    is_full = len(decision.rendezvous.members) >= there.bounds.desired
    if not is_broken or not is_full or not _is_new(there, decision):
        return None
    return None if _to_vet(there, decision, constraints.unvetted) else (there, decision)


# --- the admission: whether the world is formed now -------------------------------------------------------


def _is_new(there: Assembly, decision: Decision) -> bool:
    """Whether the decision forms another world than the published one."""
    world = decision.rendezvous
    return world.phase is FORMED and world.round != there.published.round


def _gives_way(there: Assembly, decision: Decision) -> bool:
    """Whether a world that could go on ends, so that its processes leave before the next one begins."""
    return there.is_formed and not decision.broken and decision.rendezvous.phase is REFORMING


def _without_new_world(there: Assembly, decision: Decision) -> Decision:
    """Return the decision without a new world; a break of the old one, and its reason, stay.

    A world that would give way trains on: otherwise untested workers would make the same world again.
    """
    if not _is_new(there, decision) and not _gives_way(there, decision):
        return replace(decision, look_again_seconds=None)
    if not decision.broken:
        return replace(decision, rendezvous=there.published, breaks=(), look_again_seconds=None)
    broken = leaves_dead_peers(decision.breaks)
    waiting = reforming(there.published, decision.rendezvous.reason, there.now, broken=broken)
    return replace(decision, rendezvous=waiting, look_again_seconds=None)


def _during(claim: Claim, there: Assembly, decision: Decision) -> Decision:
    """Form no world, and end one of which a member is tested, unless training is ending."""
    tested = [member for member in there.published.members if claim.tests(member)]
    stands = there.is_formed and not decision.broken
    if not stands or not tested or there.is_ending:
        return _without_new_world(there, decision)
    world = reforming(there.published, f"{claim} tests {named(tested)}", there.now)
    return Decision(world, left_out=decision.left_out)


def _to_vet(there: Assembly, decision: Decision, unvetted: frozenset[int]) -> tuple[int, ...]:
    """Return the workers to vet before this world may form. Members that train on are not tested again."""
    gives_way = _gives_way(there, decision)
    if not _is_new(there, decision) and not gives_way:
        return ()
    old = there.members if there.is_formed and not decision.broken else frozenset[int]()
    members = {p.index for p in there.joinable} if gives_way else set(decision.rendezvous.members)
    if not unvetted & (members - old):
        return ()
    return tuple(p.index for p in there.joinable if p.index not in old)


def _to_vet_meanwhile(there: Assembly, constraints: Constraints) -> tuple[int, ...]:
    """Return the workers to vet before the world that will form once all leaving Pods have left."""
    if not constraints.unvetted or not any(p.leaving_pod for p in there.participants):
        return ()
    left = [replace(p, leaving_pod="") for p in there.participants]
    return _to_vet(*_proposal(replace(there, participants=left), constraints.slow), constraints.unvetted)


def _vetting_idle(there: Assembly, decision: Decision, unvetted: frozenset[int]) -> Decision:
    """Decide to vet standby workers beside a complete world. Workers that come together share one check, so
    it waits for the last call."""
    world, bounds = decision.rendezvous, there.bounds
    stands = world.phase is FORMED and world.round == there.published.round
    if not bounds.standby or not stands or len(world.members) < bounds.desired:
        return decision
    beside = [p for p in there.participants if p.index not in world.members and p.alive]
    new = [p for p in beside if p.joinable and p.index in unvetted]
    if not new or there.is_ending:
        return decision
    wait = last_call(new, bounds) if any(p.report is None for p in beside) else 0.0
    if wait > 0:
        return _sooner(decision, wait)
    return replace(decision, to_vet=tuple(p.index for p in new))


def _held(there: Assembly, decision: Decision, hold: Hold | None) -> Decision:
    """Let no world replace a broken one before the hold ends; a formed one may grow."""
    wait = 0.0 if hold is None else (hold.until - there.now).total_seconds()
    stands = there.is_formed and not decision.broken
    if hold is None or wait <= 0 or stands or not _is_new(there, decision):
        return decision
    kept = _without_new_world(there, decision)
    world = kept.rendezvous.model_copy(update={"waits_for": f"the next world waits {hold.reason}"})
    return replace(kept, rendezvous=world, look_again_seconds=wait)


def _explained(published: Rendezvous, world: Rendezvous, constraints: Constraints) -> Rendezvous:
    """Return the world with its reason, the time of a hang to examine, and its checkpoint."""
    world = blaming(world, constraints.blame)
    if world.phase is REFORMING and world.hang_since != constraints.hang_since:
        return world.model_copy(update={"hang_since": constraints.hang_since})
    is_resumed = constraints.resumed is not None and world.resume is None
    if is_resumed and world.phase is FORMED and world.round == published.round:
        return world.model_copy(update={"resume": constraints.resumed})
    return world


def _sooner(decision: Decision, seconds: float | None) -> Decision:
    """Return the decision, with another look after so many seconds at the latest."""
    if seconds is None:
        return decision
    before = decision.look_again_seconds
    return replace(decision, look_again_seconds=seconds if before is None else min(before, seconds))
