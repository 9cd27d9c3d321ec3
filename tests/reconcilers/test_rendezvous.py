from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.agent_report import AgentState, Departure
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.world.decision import Constraints
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import Assembly, checkpoint_wait, dissolve
from reconcilers.world.vetting import Claim
from tests.counting import Searched
from tests.reconcilers.build import NOW, bounds, decide, later, participant, report

FORMED, REFORMING, FORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING, RendezvousPhase.FORMING


def formed(*members: int, round_: int = 1) -> Rendezvous:
    return Rendezvous(
        round=round_, phase=FORMED, members=list(members), incarnations=[1] * len(members), formed_at=NOW
    )


def running(*indices: int, round_: int = 1) -> list[Participant]:
    return [participant(i, AgentState.RUNNING, round_) for i in indices]


def test_world_waits_for_the_last_call_then_forms_with_the_minimum() -> None:
    ready = [participant(0, seconds_since_joined=9), participant(1, seconds_since_joined=20)]
    limits = bounds(3, 2, last_call_seconds=10)
    early = decide(Rendezvous(), ready, limits, NOW)
    assert early.rendezvous.phase is FORMING and early.look_again_seconds == 1
    due = [replace(p, seconds_since_joined=10) for p in ready]
    assert decide(Rendezvous(), due, limits, NOW).rendezvous.members == [0, 1]


def test_a_world_has_the_processes_of_all_its_members_however_many_each_has() -> None:
    """Bug 38."""
    ready = [
        replace(participant(index), report=report(index, local_world_size=size))
        for index, size in enumerate((1, 2))
    ]
    assert decide(Rendezvous(), ready, bounds(2), NOW).rendezvous.world_size == 3


def test_a_failure_of_an_earlier_round_does_not_break_this_one() -> None:
    stale = participant(1, AgentState.FAILED, 1)
    world = formed(0, 1, round_=2)
    decision = decide(world, [*running(0, round_=2), stale], bounds(2), NOW)
    assert decision.rendezvous == world and not decision.breaks


def test_world_shrinks_to_node_unit_when_replacement_is_late() -> None:
    limits = bounds(6, 2, unit=2, shrink_after_seconds=60)
    lost = participant(5, None, alive=False)
    broken = decide(formed(*range(6)), [*running(*range(5)), lost], limits, NOW)
    held = decide(broken.rendezvous, [*running(*range(5)), lost], limits, later(59))
    assert held.rendezvous.phase is REFORMING and held.look_again_seconds == 1
    shrunk = decide(broken.rendezvous, [*running(*range(5)), lost], limits, later(60)).rendezvous
    assert shrunk.members == [0, 1, 2, 3]


def test_a_world_of_which_no_pod_is_left_begins_anew_by_the_last_call() -> None:
    """All were lost, or the job was scaled to no workers: whoever comes first is not to train alone."""
    limits = bounds(8, 1, last_call_seconds=5, shrink_after_seconds=60)
    nobody = decide(formed(0, 1), [], limits, NOW).rendezvous
    assert nobody.phase is REFORMING
    first = participant(0, incarnation=2, seconds_since_joined=2)
    early = decide(nobody, [first], limits, later(600))
    assert early.rendezvous.phase is REFORMING and early.look_again_seconds == 3
    due = decide(nobody, [replace(first, seconds_since_joined=5)], limits, later(600))
    assert due.rendezvous.members == [0]
    survivor = decide(nobody, [replace(first, incarnation=1)], limits, later(600))
    assert survivor.rendezvous.members == [0], "whose replacements had their time"


def test_ready_newcomers_grow_the_world_in_whole_units_keeping_the_members() -> None:
    limits = bounds(6, 2, unit=2)
    world = formed(0, 1, 2, 3)
    one = decide(world, [*running(0, 1, 2, 3), participant(4, seconds_since_joined=99)], limits, NOW)
    assert one.rendezvous == world
    two = decide(world, [*running(0, 1, 2, 3), participant(4), participant(5)], limits, NOW)
    assert two.rendezvous.members == [0, 1, 2, 3, 4, 5]


def test_newcomer_does_not_disturb_a_world_that_is_finishing() -> None:
    people = [participant(0, AgentState.SUCCEEDED, 1), *running(1), participant(2)]
    world = formed(0, 1)
    assert decide(world, people, bounds(3, 2), NOW).rendezvous == world


def test_a_member_that_ended_well_in_an_earlier_round_is_missing_in_the_next() -> None:
    """It was counted for that one before its Pod went: it must not be waited for in vain."""
    done = participant(0, AgentState.SUCCEEDED, 1, alive=False, succeeded=True)
    missing = decide(formed(0, 1, round_=2), [done, *running(1, round_=2)], bounds(2), NOW)
    assert missing.rendezvous.phase is REFORMING
    assert missing.rendezvous.reason.startswith("worker 0 had finished in round 1, and has ended")
    assert not decide(formed(0, 1), [done, *running(1)], bounds(2), NOW).breaks


def test_restarted_container_that_left_its_world_makes_a_new_round() -> None:
    people = [*running(0), participant(1, AgentState.READY, 1)]
    assert decide(formed(0, 1), people, bounds(2), NOW).rendezvous.round == 2


def test_failure_in_place_restarts_a_degraded_world_at_once_since_nobody_is_lost() -> None:
    people = [*running(1), participant(0, AgentState.FAILED, 1), participant(2, None, alive=False)]
    decision = decide(formed(0, 1), people, bounds(3, 2), NOW)
    assert (decision.rendezvous.phase, decision.rendezvous.members) == (FORMED, [0, 1])


def test_growth_waits_for_a_checkpoint_saved_after_the_newcomers_were_ready() -> None:
    limits = bounds(3, 2, grow_at_checkpoint_seconds=60)
    newcomer = participant(2, seconds_since_joined=10)
    world = formed(0, 1)
    never = decide(world, [*running(0, 1), newcomer], limits, NOW)
    awaited = world.model_copy(update={"checkpoint_awaited_since": NOW})
    assert never.rendezvous == awaited and never.look_again_seconds == 50
    still = decide(awaited, [*running(0, 1), newcomer], limits, later(5))
    assert still.rendezvous == awaited, "since when it is awaited stays"
    assert decide(awaited, running(0, 1), limits, NOW).rendezvous == world, "nobody waits any more"
    members = running(0, 1)
    before = [replace(members[0], seconds_since_checkpoint=10), members[1]]
    assert decide(world, [*before, newcomer], limits, NOW).rendezvous == awaited
    after = [replace(members[0], seconds_since_checkpoint=9), members[1]]
    grown = decide(awaited, [*after, newcomer], limits, NOW).rendezvous
    assert grown.members == [0, 1, 2] and grown.checkpoint_awaited_since is None


def test_growth_waits_for_a_checkpoint_no_longer_than_asked_and_only_if_asked() -> None:
    world, late = formed(0, 1), participant(2, seconds_since_joined=60)
    limits = bounds(3, 2, grow_at_checkpoint_seconds=60)
    assert decide(world, [*running(0, 1), late], limits, NOW).rendezvous.round == 2
    assert decide(world, [*running(0, 1), participant(2)], bounds(3, 2), NOW).rendezvous.round == 2


def test_checkpoint_holds_up_no_world_that_is_broken() -> None:
    limits = bounds(3, 2, grow_at_checkpoint_seconds=60)
    people = [*running(1), participant(0, AgentState.FAILED, 1), participant(2)]
    assert decide(formed(0, 1), people, limits, NOW).rendezvous.members == [0, 1, 2]


def test_waiting_for_the_minimum_is_told() -> None:
    few = decide(Rendezvous(), [participant(0), participant(1)], bounds(6, 3, unit=2), NOW).rendezvous
    assert few.why == "2 of at least 4 workers are ready"
    lost = [*running(0), participant(1, None, alive=False, gone_because="no heartbeat")]
    broken = decide(formed(0, 1), lost, bounds(2), NOW).rendezvous
    said = "worker 1 was lost: no heartbeat; 1 of at least 2 workers are ready"
    assert (broken.phase, broken.why) == (REFORMING, said)
    assert decide(broken, lost, bounds(2), later(999)).rendezvous == broken
    back = decide(broken, [*running(0), participant(1)], bounds(2), NOW).rendezvous
    assert back.why == "worker 1 was lost: no heartbeat"


def moved_apart() -> tuple[Rendezvous, list[Participant], Participant]:
    """A world of worker 0 alone, which runs; worker 1 is ready to take its place."""
    return formed(0), running(0), participant(1, replaces=0, seconds_since_joined=99)


def test_who_takes_all_places_waits_until_those_who_leave_have_left_and_the_status_says_so() -> None:
    world, old, target = moved_apart()
    limits = bounds(1, shrink_after_seconds=60, grace_seconds=30)
    first = decide(world, [*old, target], limits, NOW)
    assert first.rendezvous.phase is REFORMING and first.look_again_seconds == 90
    assert first.rendezvous.waits_for == "processes of worker 0 still run"
    still = decide(first.rendezvous, [*old, target], limits, later(20))
    assert still.rendezvous == first.rendezvous and still.look_again_seconds == 70
    left = decide(first.rendezvous, [participant(0, observed_round=1), target], limits, later(20))
    assert left.rendezvous.members == [1]


def test_a_member_that_never_says_that_it_has_left_counts_as_lost_after_its_grace() -> None:
    world, old, target = moved_apart()
    for shrink, grace in ((60, 30), (0, 30)):
        limits = bounds(1, shrink_after_seconds=shrink, grace_seconds=grace)
        held = decide(world, [*old, target], limits, NOW).rendezvous
        early = decide(held, [*old, target], limits, later(shrink + grace - 1))
        assert early.rendezvous == held and early.look_again_seconds == 1
        assert decide(held, [*old, target], limits, later(shrink + grace)).rendezvous.members == [1]


def test_a_member_that_leaves_alone_hears_that_its_peers_are_dead() -> None:
    """Else it would spend its whole grace in a collective that cannot end."""
    back = participant(0, incarnation=2)
    people = [back, *running(1), participant(2, replaces=1, seconds_since_joined=99)]
    world = decide(formed(0, 1), people, bounds(2), NOW).rendezvous
    assert (world.phase, world.broken_round) == (REFORMING, 1)
    assert world.waits_for == "processes of worker 1 still run"


def comes(index: int, leaving_pod: str = "") -> Participant:
    """Whose agent is ready; its predecessor may still train."""
    return participant(index, incarnation=2, leaving_pod=leaving_pod, seconds_since_joined=99)


def leaves(index: int) -> Participant:
    return participant(index, AgentState.RUNNING, 1, alive=False, stops_in_good_order=True, leaving_pod="p")


STANDBY = participant(2, seconds_since_joined=99)


@pytest.mark.parametrize(
    ("people", "waits_for"),
    [
        ([comes(0, "p"), *running(1)], "processes of worker 0 still run"),
        ([*running(0), comes(1, "p")], "processes of worker 1 still run"),
        ([*running(0), comes(1)], ""),
        ([comes(0, "p"), comes(1, "q")], "processes of workers 0, 1 still run"),
        ([comes(0), comes(1, "q")], "processes of worker 1 still run"),
        ([leaves(0), *running(1), STANDBY], "processes of worker 0 still run"),
        ([*running(0), leaves(1), STANDBY], ""),
    ],
    ids=["first slot", "a slot", "left", "all", "all but one have left", "rank 0, a standby", "a standby"],
)
def test_no_slot_trains_twice_at_once_and_rank_0_saves_before_others_go_on(
    people: list[Participant], waits_for: str
) -> None:
    """What a world may become when its Pods leave, and their successors are ready: also once the time for
    replacements is over, which would allow a smaller world."""
    world = formed(0, 1)
    for seconds in (0, 1, 119):
        found = decide(world, people, bounds(2, shrink_after_seconds=120, grace_seconds=600), later(seconds))
        world = found.rendezvous
        assert world.waits_for == waits_for, seconds
    assert (world.round == 2) is (not waits_for)


@pytest.mark.parametrize(
    ("people", "members"),
    [
        ([*running(0), comes(1, "p")], [0]),
        ([comes(0, "p"), *running(1)], []),
        ([comes(0), comes(1, "p")], []),
        ([comes(0), comes(1)], [0, 1]),
    ],
)
def test_a_world_shrinks_without_a_slot_that_is_long_in_leaving_unless_it_is_rank_0s_or_all_leave(
    people: list[Participant], members: list[int]
) -> None:
    limits = bounds(2, 1, shrink_after_seconds=60, last_call_seconds=5, grace_seconds=5)
    held = decide(formed(0, 1), [leaves(0), leaves(1)], limits, NOW).rendezvous
    after = decide(held, people, limits, later(600)).rendezvous
    assert (after.members if after.round == 2 else []) == members


def test_a_first_world_waits_for_the_processes_of_an_earlier_job_or_of_before_a_suspension() -> None:
    slots = [comes(0), comes(1, "p")]
    early = decide(Rendezvous(), slots, bounds(2, 1), NOW).rendezvous
    assert (early.phase, early.waits_for) == (FORMING, "processes of worker 1 still run")
    assert decide(early, [comes(0), comes(1)], bounds(2, 1), NOW).rendezvous.members == [0, 1]


def test_new_nodes_are_checked_while_the_processes_of_the_pods_before_leave() -> None:
    constraints = Constraints(unvetted=frozenset({0}))
    decision = decide(formed(0, 1), [comes(0, "p"), *running(1)], bounds(2), NOW, constraints)
    assert decision.to_vet == (0, 1) and decision.rendezvous.phase is REFORMING


# --- invariants -------------------------------------------------------------------------------------

STATES = st.sampled_from([None, *AgentState])


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Participant], Bounds]:
    desired = draw(st.integers(0, 8))
    unit = draw(st.integers(1, 3))
    limits = Bounds(desired, draw(st.integers(1, 8)), unit, 10.0, 20.0)
    people = []
    for index in range(desired):
        state = draw(STATES)
        incarnation = draw(st.integers(1, 3))
        spoken = None
        if state is not None:
            departure = draw(st.none() | st.builds(Departure, round=st.integers(0, 4), step=st.just(7)))
            round_ = draw(st.integers(0, 4))
            spoken = report(index, state, round_, incarnation=incarnation, departure=departure)
        alive = draw(st.booleans())
        people.append(
            Participant(
                index,
                incarnation,
                alive,
                succeeded=not alive and draw(st.booleans()),
                stops_in_good_order=not alive and draw(st.booleans()),
                report=spoken,
                seconds_since_joined=draw(st.floats(0, 40)),
            )
        )
    return people, limits


@st.composite
def published_worlds(draw: st.DrawFn) -> Rendezvous:
    round_ = draw(st.integers(0, 4))
    phase = FORMING if round_ == 0 else draw(st.sampled_from(list(RendezvousPhase)))
    members = [] if phase is FORMING else sorted(draw(st.sets(st.integers(0, 7), min_size=1)))
    return Rendezvous(
        round=round_,
        phase=phase,
        members=members,
        incarnations=[draw(st.integers(1, 3)) for _ in members],
        reforming_since=NOW if phase is REFORMING else None,
        broken_round=draw(st.integers(0, round_ if phase is REFORMING else max(round_ - 1, 0))),
    )


@given(situations(), published_worlds(), st.floats(0, 100), st.booleans())
def test_the_world_names_the_last_round_whose_processes_died(
    situation: tuple[list[Participant], Bounds], published: Rendezvous, seconds: float, checked_first: bool
) -> None:
    """Invariant: that is the published round if some have just died, and else what it was."""
    people, limits = situation
    decision = decide(published, people, limits, later(seconds))
    died = any(not (b.trains_on or b.stops_in_good_order) for b in decision.breaks)
    if checked_first:  # no new world before a check, or within a hold: the break is shown all the same
        other = Constraints(claim=Claim("digits-check-1", frozenset({99})))
        decision = decide(published, people, limits, later(seconds), other)
    expected = published.round if died else published.broken_round
    assert decision.rendezvous.broken_round == expected
    assert dissolve(decision.rendezvous, "suspended").broken_round == expected


def test_a_planned_change_is_no_failure() -> None:
    leaving = replace(participant(1, AgentState.RUNNING, 1), leaving="it stands by")
    others = [*running(0, 2), participant(3)]
    decision = decide(formed(0, 1, 2), [*others, leaving], bounds(3), NOW)
    assert (decision.rendezvous.members, decision.rendezvous.broken_round) == ([0, 2, 3], 0)
    for in_good_order, broken_round in ((True, 0), (False, 1)):
        deleted = replace(leaving, leaving="", alive=False, stops_in_good_order=in_good_order)
        decision = decide(formed(0, 1, 2), [*others, deleted], bounds(3), NOW)
        assert (decision.rendezvous.members, decision.rendezvous.broken_round) == ([0, 2, 3], broken_round)
        assert (decision.broken, decision.failed) == (True, not in_good_order)
        said = "worker 1 leaves" if in_good_order else "worker 1 was lost"
        assert decision.rendezvous.reason == said


def test_a_world_that_all_left_by_vote_says_why_and_has_no_dead_peers() -> None:
    departure = Departure(round=1, step=120)
    left = [participant(i, AgentState.READY, 1) for i in (0, 1, 2)]
    people = [replace(p, report=report(p.index, AgentState.READY, 1, departure=departure)) for p in left]
    people.append(
        replace(
            participant(3, AgentState.STOPPED, 1),
            report=report(3, AgentState.STOPPED, 1, departure=departure),
        )
    )
    world = decide(formed(0, 1, 2, 3), people, bounds(4), NOW).rendezvous
    assert (world.phase, world.broken_round) == (REFORMING, 0)
    assert world.reason.startswith("worker 3 stopped after step 120, as all did; worker 0 left the world")
    old = replace(people[0], report=report(0, AgentState.READY, 1, departure=Departure(round=0, step=9)))
    assert decide(formed(0, 1), [old, *running(1)], bounds(2), NOW).rendezvous.broken_round == 1


@given(situations(), published_worlds(), st.just(frozenset()) | st.frozensets(st.integers(0, 7)))
def test_a_new_world_is_stable_until_its_agents_act(
    situation: tuple[list[Participant], Bounds], published: Rendezvous, slow: frozenset[int]
) -> None:
    """Invariant: with nothing reported since, deciding again from what was published changes nothing.

    Members have yet to act on the new round, so their reports speak of earlier ones. Newcomers that are no
    stragglers may join.
    """
    people, limits = situation
    first = decide(published, people, limits, NOW, Constraints(slow=slow)).rendezvous
    if first.phase is not FORMED or first.round == published.round:
        return
    quiet = [replace(p, report=replace(p.report, observed_round=0) if p.report else None) for p in people]
    again = decide(first, quiet, limits, NOW, Constraints(slow=slow)).rendezvous
    growth_possible = limits.floor(sum(p.joinable for p in quiet)) > len(first.members)
    newcomers = set(again.members) - set(first.members) - slow
    assert again == first or (newcomers and (slow or growth_possible))


@given(st.integers(1, 6), st.data())
@settings(max_examples=25, deadline=None)
def test_training_always_resumes_once_everyone_is_well(size: int, data: st.DataObject) -> None:
    """Invariant (liveness): from any published world, ready workers end up in one world of all."""
    world = data.draw(published_worlds())
    people = [participant(i, AgentState.READY, world.round, seconds_since_joined=99) for i in range(size)]
    limits = bounds(size)
    for _ in range(3):
        world = decide(world, people, limits, later(1_000)).rendezvous
    assert world.phase is FORMED and world.members == list(range(size))


def test_nobody_is_searched_for_among_all_members_while_a_growth_waits_for_a_checkpoint() -> None:
    members = Searched(range(50))
    world = formed(*members).model_copy(update={"members": members})
    newcomer = participant(50)
    waits = replace(bounds(51), grow_at_checkpoint_seconds=60.0)
    assert checkpoint_wait(Assembly(world, running(*range(50)), waits, NOW), [newcomer]) > 0
    assert members.times == 0
