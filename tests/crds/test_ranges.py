from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.intervals import PATTERN, packed
from crds.ranges import (
    EACH,
    MAX_CHARACTERS,
    MAX_INDEX,
    MAX_RANKED_CHARACTERS,
    RANKED_PATTERN,
    as_ranges,
    from_ranges,
    from_text,
    grouped,
    incarnations_of,
    ranked_from_text,
    ranked_to_text,
    to_text,
)

RANKED = st.lists(st.integers(0, MAX_INDEX), unique=True, max_size=400)
SETS = st.frozensets(st.integers(0, MAX_INDEX), max_size=400).map(sorted)


def scattered(span: int, share: float) -> list[int]:
    """Any slot may be in it."""
    return sorted(random.Random(1).sample(range(span), int(span * share)))


@given(SETS)
def test_what_is_written_is_read(indices: list[int]) -> None:
    assert from_text(to_text(indices)) == indices
    assert from_text(as_ranges(indices)) == indices


@given(RANKED)
def test_members_in_rank_order_are_read_as_they_are_written(members: list[int]) -> None:
    text = ranked_to_text(members)
    assert ranked_from_text(text) == members
    assert re.search(RANKED_PATTERN, text), "the pattern of the CRD"


@given(SETS)
def test_members_that_ascend_have_the_text_of_their_set(members: list[int]) -> None:
    assert ranked_to_text(members) == to_text(members)


BILLIONS = ",".join(["0-99999"] * 2_000)
PACKED = "r" + packed([0, *[2 * 99_999 + 1] * 99_999, *[100_000] * 100_000])[1:]
"""Both are short, and name each index very often."""


@pytest.mark.parametrize(
    "text",
    ["1,1", "4-7,0-100000", "x", "rAAAA", "r" + packed([1, 1])[1:], BILLIONS, PACKED],
    ids=lambda text: text[:12],
)
def test_members_that_no_world_can_have_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ranked_from_text(text)


def test_members_of_ten_thousand_that_are_placed_by_domain_fit_into_a_world() -> None:
    racks = [range(first, min(first + 18, 10_000)) for first in range(0, 10_000, 18)]
    random.Random(1).shuffle(racks)
    assert len(ranked_to_text([index for rack in racks for index in rack])) <= MAX_RANKED_CHARACTERS


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_no_set_of_ten_thousand_slots_is_large(share: float) -> None:
    indices = scattered(10_000, share)
    assert len(to_text(indices)) <= 2_300 and from_text(to_text(indices)) == indices
    assert re.search(PATTERN, to_text(indices)), "the pattern of the CRD"


def test_no_set_of_all_indices_that_there_are_is_refused() -> None:
    assert len(to_text(scattered(MAX_INDEX + 1, 0.5))) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1-",
        "2-1",
        "1,1",
        "100000",
        "1,,2",
        "z!",
        "zAAAA",
        "１",
    ],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)


def test_only_who_is_not_of_the_first_incarnation_is_named() -> None:
    assert grouped([0, 1, 5], [1, 1, 1]) == {}
    assert grouped([0, 1, 5, 6], [1, 3, 1, 2]) == {"2": "6", "3": "1"}


def test_after_a_roll_of_all_the_others_are_not_named_one_by_one() -> None:
    members = list(range(10_000))
    assert grouped(members, [2] * 10_000) == {"2": "*"}
    assert grouped(members, [3, *[2] * 9_998, 1]) == {"1": "9999", "3": "0", "2": "*"}


@given(st.dictionaries(st.integers(0, MAX_INDEX), st.integers(1, 5), max_size=60))
def test_incarnations_are_read_as_written(worlds: dict[int, int]) -> None:
    members = sorted(worlds)
    incarnations = [worlds[index] for index in members]
    assert incarnations_of(members, grouped(members, incarnations)) == incarnations


def test_many_different_incarnations_are_packed_in_the_order_of_the_members() -> None:
    members, incarnations = list(range(0, 10_000, 2)), random.Random(1).sample(range(1, 5_001), 5_000)
    groups = grouped(members, incarnations)
    assert [*groups] == [EACH] and len(groups[EACH]) < 12_500
    assert incarnations_of(members, groups) == incarnations
    with pytest.raises(ValueError, match="4999 members have 5000 incarnations"):
        incarnations_of(members[1:], groups)


@given(st.lists(st.integers(0, MAX_INDEX), max_size=60))
def test_slots_in_any_order_are_read_in_that_order(slots: list[int]) -> None:
    assert from_ranges(as_ranges(slots)) == slots


def test_a_torn_text_is_refused() -> None:
    text = to_text(scattered(10_000, 0.1))
    assert text.startswith("z")
    for torn in (text[:-5], "z", "z" + text[2:]):
        with pytest.raises(ValueError):
            from_text(torn)
