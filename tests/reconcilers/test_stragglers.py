from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from crds.agent_report import AgentState
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.world.decision import Constraints, Decision
from reconcilers.world.participants import Bounds, Participant
from tests.reconcilers.build import NOW, bounds, decide, participant
from tests.reconcilers.test_rendezvous import running

FORMED, REFORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING


def ready(*indices: int) -> list[Participant]:
    return [participant(i) for i in indices]


def world(*members: int, phase: RendezvousPhase = FORMED) -> Rendezvous:
    return Rendezvous(
        round=1, phase=phase, members=list(members), incarnations=[1] * len(members), reforming_since=NOW
    )


def without_slow(
    published: Rendezvous, people: list[Participant], limits: Bounds, slow: Collection[int], now: datetime
) -> Decision:
    return decide(published, people, limits, now, Constraints(slow=frozenset(slow)))


def test_nobody_waits_for_a_straggler_that_is_left_out() -> None:
    chosen = without_slow(Rendezvous(), ready(0, 1, 2, 3), bounds(4, 2), {1}, NOW)
    assert chosen.rendezvous.members == [0, 2, 3] and chosen.left_out == {1}


def test_a_straggler_is_taken_in_when_the_others_are_too_few() -> None:
    for minimum, unit in ((4, 1), (3, 2)):
        limits = bounds(4, minimum, unit)
        chosen = without_slow(Rendezvous(), ready(0, 1, 2, 3), limits, {1}, NOW)
        assert chosen.rendezvous.members == [0, 1, 2, 3] and not chosen.left_out


def test_a_straggler_outside_does_not_make_the_world_grow() -> None:
    people = [*running(0, 1), participant(2, seconds_since_joined=99)]
    chosen = without_slow(world(0, 1), people, bounds(3, 2), {2}, NOW)
    assert chosen.rendezvous == world(0, 1) and chosen.left_out == {2}


def test_a_world_that_stands_is_not_broken_to_get_rid_of_a_straggler() -> None:
    chosen = without_slow(world(0, 1, 2), running(0, 1, 2), bounds(3, 2), {2}, NOW)
    assert chosen.rendezvous == world(0, 1, 2) and not chosen.left_out


def test_a_straggler_goes_when_the_world_changes_anyway() -> None:
    people = [*running(0, 1, 2), participant(3)]
    grown = without_slow(world(0, 1, 2), people, bounds(4, 3), {2}, NOW)
    assert grown.rendezvous.members == [0, 1, 3] and grown.left_out == {2}
    failed = [*running(0, 1), participant(2, AgentState.FAILED, 1)]
    restarted = without_slow(world(0, 1, 2), failed, bounds(3, 2), {2}, NOW)
    assert restarted.rendezvous.broken_round == 1 and not grown.rendezvous.broken_round
    assert restarted.rendezvous.members == [0, 1] and restarted.breaks


def test_nobody_waits_for_the_replacement_of_a_member_that_is_left_out() -> None:
    """It is there, and would be in the next world if its node were not slow."""
    broken = world(0, 1, phase=REFORMING)
    chosen = without_slow(broken, ready(0, 1), bounds(6, 1), {0}, NOW)
    assert chosen.rendezvous.members == [1] and chosen.left_out == {0}
