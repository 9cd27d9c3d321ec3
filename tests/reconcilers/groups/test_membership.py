"""Which groups train together, decided of any statuses of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import GroupPlace, LateGroup, Membership
from reconcilers.groups.membership import GroupView, decide

GROUPS = 4
ENDS = [JobPhase.SUCCEEDED, JobPhase.SUSPENDED]
"""Phases of a group after which no other joins."""
PHASES = [None, *(phase for phase in JobPhase if phase not in ENDS)]


def able(index: int, round_: int = 1, broken_version: int = 0, **more: Any) -> GroupView:
    view = GroupView(
        index=index,
        phase=JobPhase.RUNNING,
        round=round_,
        world=RendezvousPhase.FORMED,
        address=f"10.0.0.{index}",
        port=29_400,
        ready_round=round_,
        broken_version=broken_version,
    )
    return replace(view, **more)


@st.composite
def views(draw: st.DrawFn, phases: Sequence[JobPhase | None] = PHASES) -> list[GroupView]:
    """Any groups, of each of which one thing or none speaks against its taking part."""

    def view(index: int) -> GroupView:
        group = able(
            index,
            draw(st.integers(1, 3)),
            draw(st.integers(0, 5)),
            left_out_version=draw(st.integers(0, 5)),
            late_version=draw(st.integers(0, 5)),
            late_groups=draw(st.frozensets(st.integers(0, GROUPS))),
        )
        flaws = {
            "phase": st.sampled_from(phases),
            "world": st.sampled_from(RendezvousPhase),
            "round": st.integers(0, 3),
            "broken_round": st.integers(0, group.round),
            "ready_round": st.integers(0, 3),
        }
        flaw = draw(st.sampled_from([None, *flaws]))
        return group if flaw is None else replace(group, **{flaw: draw(flaws[flaw])})

    indices = draw(st.sets(st.integers(0, GROUPS - 1)))
    return [view(index) for index in sorted(indices)]


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    version = draw(st.integers(0, 5))
    indices = draw(st.sets(st.integers(0, GROUPS - 1))) if version else set()
    places = [GroupPlace(index=index, round=draw(st.integers(1, 3))) for index in sorted(indices)]
    late = [
        LateGroup(index=index, round=draw(st.integers(1, 3)), version=draw(st.integers(1, version)))
        for index in sorted(set(range(GROUPS)) - indices)
        if version and draw(st.booleans())
    ]
    address, port = (f"10.0.0.{places[0].index}", 29_400) if places else ("", 0)
    return Membership(version=version, address=address, port=port, groups=places, late=late)


minimums = st.integers(1, GROUPS)


@given(memberships(), views([*PHASES, *ENDS]), minimums)
def test_versions_only_rise_by_one_or_are_equal_but_for_the_late_groups_that_are_forgotten(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided = decide(published, groups, minimum)
    assert decided.version - published.version in (0, 1)
    if decided.version == published.version:
        assert decided.model_copy(update={"late": published.late}) == published
        assert all(each in published.late for each in decided.late)


@given(memberships(), views(), minimums)
def test_a_version_changes_exactly_when_who_takes_part_changes_or_its_exchange_broke(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided = decide(published, groups, minimum)
    members = {(place.index, place.round) for place in decided.groups}
    broke = [group for group in groups if (group.index, group.round) in members]
    is_broken = any(group.broken_version == published.version for group in broke)
    changed = decided.groups != published.groups or decided.address != published.address
    assert (decided.version > published.version) == (changed or (is_broken and published.version > 0))


@given(memberships(), views([*PHASES, *ENDS]), minimums)
def test_no_broken_or_unready_or_ended_round_takes_part_and_the_lowest_index_leads(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    by_index = {group.index: group for group in groups}
    places = decide(published, groups, minimum).groups
    indices = [place.index for place in places]
    assert indices == sorted(set(indices))
    for place in places:
        group = by_index[place.index]
        assert place.round == group.round == group.ready_round
        assert group.phase is None or not group.phase.finished
        if group.phase is JobPhase.SUSPENDED:
            assert place in published.groups, "it only goes on"
        else:
            assert group.world is RendezvousPhase.FORMED and group.round > group.broken_round


@given(memberships(), views(), minimums)
def test_all_able_groups_but_late_ones_take_part_or_none_while_fewer_than_the_minimum_could(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided = decide(published, groups, minimum)
    late = {(each.index, each.round) for each in decided.late}
    could = [group.index for group in groups if group.is_able and (group.index, group.round) not in late]
    taking_part = [place.index for place in decided.groups]
    assert taking_part == (could if len(could) >= minimum else [])


@given(memberships(), views([*PHASES, *ENDS]), minimums)
def test_a_late_group_is_left_out_until_its_processes_have_seen_that_or_are_others(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided, by_index = decide(published, groups, minimum), {group.index: group for group in groups}
    assert not {each.index for each in decided.late} & {place.index for place in decided.groups}
    if decided.version == published.version:
        return
    before = {each.index: each for each in published.late}
    for each in decided.late:
        group = by_index[each.index]
        assert group.round <= each.round and group.left_out_version < each.version <= decided.version
        assert each == before.get(each.index) or (
            each.version == decided.version and each.round == group.round and group.is_able
        )
    for each in published.late:
        group = by_index.get(each.index)
        is_away = group is not None and group.round <= each.round and group.left_out_version < each.version
        assert (each in decided.late) == is_away


@given(memberships(), views(), minimums)
def test_nobody_is_left_out_as_late_who_waits_itself_or_whom_no_member_waits_for_in_this_version(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided, members = decide(published, groups, minimum), {(g.index, g.round) for g in published.groups}
    waiting = [
        group
        for group in groups
        if group.is_able
        and (group.index, group.round) in members
        and group.late_version == published.version
        and group.late_groups
    ]
    for each in decided.late:
        if each.version > published.version:
            assert (each.index, each.round) in members
            assert each.index not in {group.index for group in waiting}
            assert any(each.index in group.late_groups for group in waiting)


@given(memberships(), views(), minimums)
def test_lateness_never_makes_a_membership_smaller_than_the_minimum(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided = decide(published, groups, minimum)
    patient = [replace(group, late_groups=frozenset()) for group in groups]
    without = decide(published, patient, minimum)
    assert len(decided.groups) >= min(len(without.groups), minimum)


@given(memberships(), views(), minimums, st.integers(0, 5))
def test_a_report_of_another_versions_break_changes_nothing(
    published: Membership, groups: list[GroupView], minimum: int, reported: int
) -> None:
    other = reported if reported != published.version else reported + 1
    spoken = [replace(group, broken_version=other) for group in groups]
    silent = [replace(group, broken_version=published.version + 1) for group in groups]
    assert decide(published, spoken, minimum) == decide(published, silent, minimum)


@given(memberships(), st.data(), views([*PHASES, *ENDS]), minimums)
def test_the_order_in_which_groups_are_seen_does_not_matter(
    published: Membership, data: st.DataObject, groups: list[GroupView], minimum: int
) -> None:
    shuffled = data.draw(st.permutations(groups))
    assert decide(published, shuffled, minimum) == decide(published, groups, minimum)


@given(memberships(), views([*PHASES, *ENDS]), minimums)
def test_a_second_look_at_the_same_changes_nothing(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    decided = decide(published, groups, minimum)
    if all(group.broken_version != decided.version for group in groups):
        assert decide(decided, groups, minimum) is decided


@given(memberships(), views([*PHASES, *ENDS]), minimums)
def test_no_group_joins_once_one_has_succeeded(
    published: Membership, groups: list[GroupView], minimum: int
) -> None:
    if any(group.phase is JobPhase.SUCCEEDED for group in groups):
        before = {(place.index, place.round) for place in published.groups}
        after = {(place.index, place.round) for place in decide(published, groups, minimum).groups}
        assert after <= before


def test_a_hung_group_is_left_out_once_and_returns_when_it_is_back_or_restarted() -> None:
    first = decide(Membership(), [able(0), able(1), able(2)], 2)
    waits = able(1, late_version=1, late_groups=frozenset({0}))
    second = decide(first, [able(0), waits, able(2)], 2)
    assert [place.index for place in second.groups] == [1, 2]
    assert second.late == [LateGroup(index=0, round=1, version=2)]
    assert decide(second, [able(0), waits, able(2)], 2) is second, "that it is ready says nothing"
    assert decide(second, [replace(able(0), ready_round=0), waits, able(2)], 2) is second
    back = decide(second, [able(0, left_out_version=2), waits, able(2)], 2)
    assert (len(back.groups), back.late) == (3, [])
    restarted = decide(second, [able(0, round_=2), waits, able(2)], 2)
    assert ([place.round for place in restarted.groups], restarted.late) == ([2, 1, 1], [])
    again = decide(back, [able(0, left_out_version=2), replace(waits, late_version=3), able(2)], 2)
    assert again.late == [LateGroup(index=0, round=1, version=4)], "an earlier return does not count"
    few = decide(again, [able(0, left_out_version=2), waits], 2)
    assert (few.groups, few.late) == ([], again.late), "it is away, and one alone is below the minimum"


def test_a_late_group_that_is_deleted_and_made_again_takes_part_though_its_rounds_begin_anew() -> None:
    first = decide(Membership(), [able(0, 5), able(1), able(2)], 2)
    waits = able(1, late_version=1, late_groups=frozenset({0}))
    second = decide(first, [able(0, 5), waits, able(2)], 2)
    assert second.late == [LateGroup(index=0, round=5, version=2)]
    gone = decide(second, [waits, able(2)], 2)
    assert (gone.version, gone.groups, gone.late) == (2, second.groups, [])
    again = decide(gone, [able(0, 1), waits, able(2)], 2)
    assert [place.round for place in again.groups] == [1, 1, 1]


def test_the_groups_of_a_suspended_job_go_on_until_each_has_left_and_none_joins_them() -> None:
    leaving = {"phase": JobPhase.SUSPENDED, "world": RendezvousPhase.FORMING}
    both = decide(Membership(), [able(0), able(1)], minimum=2)
    assert decide(both, [able(0, **leaving), able(1), able(2)], minimum=2) == both
    assert decide(both, [able(0, **leaving), able(1, **leaving)], minimum=2) == both
    one = decide(both, [able(0, **leaving, ready_round=0), able(1, **leaving)], minimum=2)
    assert (one.version, one.groups, one.address) == (2, [GroupPlace(index=1, round=1)], "10.0.0.1")
    none = decide(one, [able(index, **leaving, ready_round=0) for index in (0, 1)], minimum=2)
    assert (none.version, none.groups) == (3, [])
    assert decide(none, [able(0, **leaving)], minimum=1) == none, "of an earlier suspension"
