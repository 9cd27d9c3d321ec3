"""When a node check has to come before a job's world (docs/node-check.md, "In a job"). Pure.

While a check is active no world is formed, and a world of which it tests a member is given up. When a world
would be formed with workers that no check vouches for, a check is made instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crds.nodecheck import NodeCheck
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.nodecheck.job_checks import Standing, named
from reconcilers.world.moving import settle
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import (
    Decision,
    asking,
    awaiting_checkpoint,
    blaming,
    decide,
    form,
    given_up,
    held,
    is_ending,
    last_call,
    without_new_world,
)


@dataclass(frozen=True)
class Course:
    """What is to be done about a job's world."""

    decision: Decision
    left_out: frozenset[int] = frozenset()
    """Workers on slow nodes that the world does without."""
    check: tuple[int, ...] = ()
    """The workers to check before the world can be formed."""
    otherwise: Decision | None = None
    """What to do if that check cannot even be made."""

    def without_check(self) -> Course:
        return Course(self.otherwise or self.decision, self.left_out)

    def held(self, published: Rendezvous, until: datetime | None, why: str, now: datetime) -> Course:
        """No new world before `until`."""
        later = self.otherwise and held(published, self.otherwise, until, why, now)
        return replace(self, decision=held(published, self.decision, until, why, now), otherwise=later)

    def blaming(self, broken: int | None, why: str) -> Course:
        """Its world says who was first when that of round `broken` broke; None if that is not known."""
        otherwise = self.otherwise and blaming(self.otherwise, broken, why)
        return replace(self, decision=blaming(self.decision, broken, why), otherwise=otherwise)

    def asking(self, hang_since: datetime | None) -> Course:
        """The members are asked since then where they hang; None if they are not."""
        otherwise = self.otherwise and asking(self.otherwise, hang_since)
        return replace(self, decision=asking(self.decision, hang_since), otherwise=otherwise)


def plan_world(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    standing: Standing,
    active: NodeCheck | None,
    now: datetime,
) -> Course:
    """`decide`, with checks: the faulty do not join, the slow only if needed, the unchecked wait.

    Who takes another's place does so though its node is slow: the world is not to be smaller for it. While
    only idle workers are tested, others who stand by may step in.
    """
    if active is not None and bounds.standby and not tested_members(active, published):
        untested = [_in_check(p, active) for p in participants]
        course = plan_world(published, untested, bounds, standing, None, now)
        if _replaces_the_lost(published, course, bounds):
            return course
    settled = settle(published, _without_faulty(participants, standing), bounds, now)
    able = settled.participants
    slow = standing.slow - {p.index for p in able if p.replaces is not None}
    chosen = decide_without_stragglers(published, able, bounds, slow, now)
    decision = _again_in(chosen.decision, settled.look_again_seconds)
    if settled.awaits_checkpoint:
        decision = awaiting_checkpoint(published, decision, now)
    if active is not None:
        return Course(_during(active, published, decision, able, now), chosen.left_out)
    check = _workers_to_check(published, decision, able, standing.unchecked)
    if not check:
        idle, wait = _idle_to_check(published, decision, able, bounds, standing.unchecked)
        return Course(_again_in(decision, wait), chosen.left_out, idle, otherwise=decision)
    unformed = without_new_world(published, decision, now)
    return Course(unformed, chosen.left_out, check, otherwise=decision)


def waiting_since_the_check(published: Rendezvous, now: datetime) -> Rendezvous:
    """A broken world gives a replacement its time from the end of a check on, not from its beginning."""
    if published.phase is not RendezvousPhase.REFORMING:
        return published
    return published.model_copy(update={"reforming_since": now})


def _again_in(decision: Decision, seconds: float | None) -> Decision:
    known = decision.look_again_seconds
    if seconds is None:
        return decision
    return replace(decision, look_again_seconds=seconds if known is None else min(known, seconds))


def _without_faulty(participants: Sequence[Participant], standing: Standing) -> list[Participant]:
    """Marks workers on faulty nodes as lost."""
    why = standing.faulty
    return [replace(p, alive=False, gone_because=why[p.index]) if p.index in why else p for p in participants]


def _workers_to_check(
    published: Rendezvous, decision: Decision, participants: Sequence[Participant], unchecked: frozenset[int]
) -> tuple[int, ...]:
    """Nobody, if the decision may stand. Members of a world that did not break are not tested again."""
    world = decision.rendezvous
    if world.phase is not RendezvousPhase.FORMED or world.round == published.round:
        return ()
    growth = published.phase is RendezvousPhase.FORMED and not decision.broken
    old = set(published.members) if growth else set()
    if not unchecked & (set(world.members) - old):
        return ()
    return tuple(p.index for p in participants if p.joinable and p.index not in old)


def _idle_to_check(
    published: Rendezvous,
    decision: Decision,
    participants: Sequence[Participant],
    bounds: Bounds,
    unchecked: frozenset[int],
) -> tuple[tuple[int, ...], float | None]:
    """Chooses standby workers to check beside a complete world; those who come together share a check.

    Returns:
        the workers, and otherwise the seconds until they may be checked.
    """
    world = decision.rendezvous
    stands = world.phase is RendezvousPhase.FORMED and world.round == published.round
    if not bounds.standby or not stands or len(world.members) < bounds.desired:
        return (), None
    beside = [p for p in participants if p.index not in world.members and p.alive]
    new = [p for p in beside if p.joinable and p.index in unchecked]
    if not new or is_ending(published, participants):
        return (), None
    wait = last_call(new, bounds) if any(p.report is None for p in beside) else 0.0
    return ((), wait) if wait > 0 else (tuple(p.index for p in new), None)


def tested_members(check: NodeCheck, world: Rendezvous) -> list[int]:
    return [m for m in world.members if check.spec.workers is None or m in check.spec.workers]


def _in_check(participant: Participant, check: NodeCheck) -> Participant:
    tested = check.spec.workers is None or participant.index in check.spec.workers
    return replace(participant, leaving=f"{check.metadata.name} tests it") if tested else participant


def _replaces_the_lost(published: Rendezvous, course: Course, bounds: Bounds) -> bool:
    """Whether it is another world of full size for one that is broken."""
    world, decision = course.decision.rendezvous, course.decision
    broken = decision.broken or published.phase is RendezvousPhase.REFORMING
    new = world.phase is RendezvousPhase.FORMED and world.round != published.round
    return broken and new and len(world.members) >= bounds.desired and not course.check


def _during(
    active: NodeCheck,
    published: Rendezvous,
    decision: Decision,
    participants: Sequence[Participant],
    now: datetime,
) -> Decision:
    tested = tested_members(active, published)
    stands = published.phase is RendezvousPhase.FORMED and not decision.broken
    if not stands or not tested or is_ending(published, participants):
        return without_new_world(published, decision, now)
    reason = f"node check {active.metadata.name} tests {named(tested)}"
    return Decision(given_up(published, reason, now))


@dataclass(frozen=True)
class Selection:
    decision: Decision
    left_out: frozenset[int]
    """Workers that would train if their nodes were not slow."""


def decide_without_stragglers(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    slow: Collection[int],
    now: datetime,
) -> Selection:
    """`decide`, without the workers in `slow` as far as possible."""
    out = left_out(published, participants, bounds, slow)
    if published.phase is not RendezvousPhase.FORMED:
        return Selection(_decide(published, participants, bounds, out, now), out)
    strangers = out - set(published.members)
    decision = _decide(published, participants, bounds, strangers, now)
    world = decision.rendezvous
    if world.round == published.round:
        return Selection(decision, strangers)
    if not out & set(world.members):
        return Selection(decision, out)
    joinable = [p for p in _without(participants, out) if p.joinable]
    keep = set(published.members)
    lean = form(published, joinable, bounds.without(len(out)), world.reason, now, keep=keep)
    lean = lean.model_copy(update={"broken_round": world.broken_round})
    return Selection(replace(decision, rendezvous=lean), out)


def left_out(
    published: Rendezvous, participants: Sequence[Participant], bounds: Bounds, slow: Collection[int]
) -> frozenset[int]:
    """Returns slow workers that could join and are not needed: the others make an allowed world."""
    if not slow:
        return frozenset()
    others = sum(p.joinable for p in participants if p.index not in slow)
    if not bounds.floor(others):
        return frozenset()
    return frozenset(p.index for p in participants if p.index in slow and p.joinable)


def _decide(
    published: Rendezvous,
    participants: Sequence[Participant],
    bounds: Bounds,
    out: frozenset[int],
    now: datetime,
) -> Decision:
    return decide(published, _without(participants, out), bounds.without(len(out)), now)


def _without(participants: Sequence[Participant], out: frozenset[int]) -> list[Participant]:
    """They stay where they are, so that nobody waits for a replacement of one that was a member."""
    return [replace(p, leaving="its node is slow") if p.index in out else p for p in participants]
