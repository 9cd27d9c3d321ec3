from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import Decision
from tests.reconcilers.build import NOW, bounds, decide, later, participant
from tests.reconcilers.test_rendezvous import formed, running

FORMED, REFORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING


def target(
    index: int, replaces: int, state: AgentState | None = AgentState.READY, **more: Any
) -> Participant:
    return participant(index, state, replaces=replaces, **more)


def decided(published: Rendezvous, people: list[Participant], limits: Bounds) -> Decision:
    return decide(published, people, limits, NOW)


def test_several_moves_wait_for_each_other_as_newcomers_do() -> None:
    world, limits = formed(0, 1), bounds(2, last_call_seconds=10)
    people = [*running(0, 1), target(2, 0, seconds_since_joined=4), target(3, 1, state=None)]
    assert decided(world, people, limits).look_again_seconds == 6
    late = [*running(0, 1), target(2, 0, seconds_since_joined=10), target(3, 1, state=None)]
    assert decided(world, late, limits).rendezvous.members == [1, 2]
    both = [*running(0, 1), target(2, 0, seconds_since_joined=4), target(3, 1)]
    assert decided(world, both, limits).rendezvous.phase is REFORMING, "nobody would wait for those who leave"


def test_move_waits_for_the_next_checkpoint_if_growth_does() -> None:
    world, limits = formed(0, 1), bounds(2, grow_at_checkpoint_seconds=60)
    old = [replace(p, seconds_since_checkpoint=9) for p in running(0, 1)]
    ready = target(2, 1, seconds_since_joined=5)
    assert decided(world, [*old, ready], limits).look_again_seconds == 55
    saved = [replace(p, seconds_since_checkpoint=1) for p in running(0, 1)]
    assert decided(world, [*saved, ready], limits).rendezvous.members == [0, 2]


def test_who_is_to_leave_trains_on_while_the_others_are_too_few() -> None:
    leaving = replace(running(1)[0], leaving="worker 1 is no longer wanted")
    world = formed(0, 1)
    assert decided(world, [*running(0), leaving], bounds(2)).rendezvous == world
    joined = decided(world, [*running(0), leaving, participant(2)], bounds(2)).rendezvous
    assert (joined.phase, joined.members) == (FORMED, [0, 2])
    dead = replace(leaving, alive=False)
    assert decided(world, [*running(0), dead], bounds(2)).rendezvous.phase is REFORMING


# --- invariants -------------------------------------------------------------------------------------

STATES = st.sampled_from([None, *AgentState])


@st.composite
def moves(draw: st.DrawFn) -> tuple[Rendezvous, list[Participant], Bounds]:
    """Some world of some workers, of whom some are to be replaced."""
    unit = draw(st.integers(1, 2))
    count = unit * draw(st.integers(1, 3))
    limits = bounds(count, draw(st.integers(1, count)), unit, last_call_seconds=10)

    def someone(index: int, replaces: int | None = None) -> Participant:
        state = draw(STATES)
        return participant(
            index,
            state,
            draw(st.integers(0, 3)),
            alive=draw(st.booleans()) or state is AgentState.RUNNING,
            seconds_since_joined=draw(st.sampled_from([0.0, 5.0, 20.0])),
            replaces=replaces,
        )

    sources = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    people = [someone(i) for i in range(count)]
    people += [someone(count + n, source) for n, source in enumerate(sources)]
    # Whoever is in a world had reported, and its report stays.
    heard = [p.index for p in people[:count] if p.report is not None or not p.alive]
    assume(heard)
    members = draw(st.lists(st.sampled_from(heard), unique=True, min_size=1))
    world = formed(*sorted(members), round_=3)
    if draw(st.booleans()):
        world = world.model_copy(
            update={"phase": REFORMING, "reforming_since": later(-draw(st.integers(0, 99)))}
        )
    return world, people, limits


@given(moves())
def test_no_world_has_both_or_is_smaller_for_a_move(
    situation: tuple[Rendezvous, list[Participant], Bounds],
) -> None:
    """Invariants: never a source with its target; never a smaller world, or none, for the sake of a move.

    A growth, and a world of which no Pod is left, may wait for the last call of a target that has just joined, as
    for any newcomer.
    """
    world, people, limits = situation
    with_moves = decided(world, people, limits)
    without = decide(world, [p for p in people if p.replaces is None], limits, NOW)
    new = with_moves.rendezvous
    if new.phase is FORMED:
        members = set(new.members)
        assert not any({p.index, p.replaces} <= members for p in people if p.replaces is not None)
        assert new.round == world.round or limits.floor(len(members)) == len(members)
    if without.rendezvous.phase is FORMED:
        waits = with_moves.look_again_seconds
        last_call = waits is not None and waits <= limits.last_call_seconds
        nobody_is_left = world.phase is REFORMING and not any(people[i].alive for i in world.members)
        placed = {p.replaces for p in people if p.joinable}
        all_leave = all(i in placed or not people[i].joinable for i in world.members)
        assert new.phase is FORMED or (nobody_is_left and last_call) or all_leave
        if new.phase is FORMED:
            assert len(new.members) >= len(without.rendezvous.members) or (new == world and last_call)
    ranks = [index for index in new.members if index in world.members]
    assert ranks == [index for index in world.members if index in ranks], "the others keep their order"


def test_a_world_that_waits_is_formed_when_whoever_takes_a_members_place_is_there() -> None:
    waiting = Rendezvous(round=3, phase=RendezvousPhase.REFORMING, members=[4], reforming_since=NOW)
    people = [participant(3), participant(4), participant(8, replaces=4)]
    assert decided(waiting, people, bounds(6, 1, unit=2)).rendezvous.members == [3, 8]


@given(moves())
def test_a_move_costs_one_round(situation: tuple[Rendezvous, list[Participant], Bounds]) -> None:
    """Invariant: what was decided stands while its agents have yet to act."""
    world, people, limits = situation
    new = decided(world, people, limits).rendezvous
    if new.phase is not FORMED or new.round == world.round:
        return
    quiet = [
        replace(p, report=replace(p.report, observed_round=0) if p.report else None)
        for p in people
        if p.replaces is None or p.index in new.members
    ]
    done = {p.replaces for p in quiet if p.replaces is not None}
    left = [replace(p, replaces=None) for p in quiet if p.index not in done]
    if limits.floor(sum(p.joinable for p in left)) <= len(new.members):
        assert decided(new, left, limits).rendezvous == new
