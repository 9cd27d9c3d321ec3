"""Stacks of many ranks: equal ones are one place, and who is not like the others comes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlr.job.stacks import merge, stack_lines
from tests.cli.scripted import JSON


def waiting(*ranks: int, step: int | None = 9) -> list[JSON]:
    return [{"rank": rank, "inCollective": True, "step": step, "frames": "all_reduce"} for rank in ranks]


def test_rank_that_the_others_left_behind_comes_before_them() -> None:
    assert [place.ranks for place in merge([*waiting(0, 1, 2), *waiting(3, step=7)])] == [[3], [0, 1, 2]]


def test_a_step_apart_is_no_difference() -> None:
    (place,) = merge([*waiting(0), *waiting(1, step=10), *waiting(2, step=None)])
    assert place.steps == (9, 10)
    assert stack_lines([place])[0] == "ranks 0-2, steps 9-10, waiting for other ranks:"


stacks = st.lists(
    st.fixed_dictionaries(
        {"rank": st.integers(0, 40)},
        optional={
            "step": st.none() | st.integers(0, 5),
            "inCollective": st.booleans(),
            "frames": st.sampled_from(["", "a", "b"]),
        },
    ),
    unique_by=lambda stack: stack["rank"],
)


@given(stacks)
def test_every_rank_is_at_one_place_and_none_waits_before_one_that_does_not(stacks: list[JSON]) -> None:
    places = merge(stacks)
    assert sorted(rank for place in places for rank in place.ranks) == sorted(s["rank"] for s in stacks)
    assert [place.waits for place in places] == sorted(place.waits for place in places)
