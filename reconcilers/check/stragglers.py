"""excludeStragglers: slow nodes' workers are left out of the world while enough others remain.

Nobody waits for those who are left out, and as soon as the others are too few they are taken in again. A
world that stands is not broken to get rid of a straggler: it goes when the world changes anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crds.elasticjob import Rendezvous, RendezvousPhase
from reconcilers.world.rendezvous import Bounds, Decision, Participant, decide, form


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
    """Those of the slow who could join and are not needed: the others make an allowed world without them."""
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
    return [p for p in participants if p.index not in out]
