"""What members agree upon at a meeting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlr.replicas.agreement import MeetingGroup, agree, agree_on_round

members = st.builds(
    MeetingGroup,
    trained=st.booleans(),
    applied=st.integers(0, 5),
    applied_in=st.integers(0, 4),
    complete_in=st.integers(0, 4),
    has_loaded=st.booleans(),
    ends=st.booleans(),
)


def all_hold_the_next_step(met: list[MeetingGroup]) -> bool:
    """Whether all that meet have all gradients of the same step in the same version."""
    at = {(each.trained, each.applied, each.applied_in, each.complete_in) for each in met}
    return len(at) == 1 and met[0].trained and met[0].complete_in > 0


@given(st.lists(members, min_size=1, max_size=6))
def test_each_member_leads_is_level_rolls_or_is_behind(met: list[MeetingGroup]) -> None:
    agreed = agree(met)
    if all_hold_the_next_step(met):
        assert agreed.rolls == {*range(len(met))} and not agreed.behind
        assert (agreed.step, agreed.applied_in) == (met[0].applied + 1, met[0].complete_in)
        assert agreed.is_over == any(member.ends for member in met)
        return
    assert agreed.leader not in agreed.rolls | agreed.behind
    assert not agreed.rolls & agreed.behind
    led = met[agreed.leader]
    for place, member in enumerate(met):
        if place in agreed.rolls:
            assert member.applied + 1 == led.applied and member.complete_in == led.applied_in > 0
        elif place not in agreed.behind and place != agreed.leader:
            assert (member.trained, member.applied, member.applied_in) == (True, led.applied, led.applied_in)


@given(st.lists(members, min_size=1, max_size=6))
def test_who_has_trained_leads_those_who_have_not_and_the_furthest_leads_those(
    met: list[MeetingGroup],
) -> None:
    led = met[agree(met).leader]
    assert led.trained or not any(member.trained for member in met)
    assert all(led.applied >= member.applied for member in met if member.trained == led.trained)
    loads = not led.trained and not all(member.has_loaded for member in met)
    assert agree(met).loads_first == loads, "none waits for storage while another one trains"


@given(members)
def test_a_member_is_the_same_after_the_network(member: MeetingGroup) -> None:
    assert MeetingGroup.of_numbers(member.to_numbers()) == member


@given(st.lists(members, min_size=1, max_size=6), st.integers(0, 4))
def test_those_behind_contribute_to_no_step_until_they_have_the_state(
    met: list[MeetingGroup], later: int
) -> None:
    agreed = agree(met)
    counted = agreed.contributors(agreed.step + later, len(met))
    assert agreed.leader in counted
    if later < 2 and not agreed.is_first:
        assert not agreed.behind & set(counted)
    else:
        assert counted == tuple(range(len(met)))


@given(st.lists(st.integers(3, 5), min_size=1, max_size=6))
def test_where_nobody_has_trained_the_checkpoint_with_the_most_inner_steps_counts(inner: list[int]) -> None:
    met = [MeetingGroup(applied=1, inner_steps=steps) for steps in inner]
    assert met[agree_on_round(met).leader].inner_steps == max(inner)
