"""One worker takes the place of another in the world once it is ready, in one round that nobody else loses.

`settle` goes before `decide`: of a slot and the one that is to take its place, it leaves the one that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.world.breaks import broken_members
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import checkpoint_wait, is_ending, last_call


@dataclass(frozen=True)
class Settled:
    participants: list[Participant]
    """The participants; those that go without a world are marked as leaving."""
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
        return Settled(list(participants))
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
