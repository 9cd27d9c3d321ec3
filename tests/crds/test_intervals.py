"""Sets of large numbers, and leases of them, as text."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds import intervals
from crds.intervals import (
    READABLE_CHARACTERS,
    Intervals,
    common,
    count,
    first,
    from_text,
    minus,
    numbers_of,
    of_numbers,
    to_text,
    union,
    whole,
)
from crds.leases import Lease, leases_from_text, leases_to_text
from tests.counting import counted, growth

SETS = st.frozensets(st.integers(0, 200), max_size=120)


def numbers(of: Intervals) -> set[int]:
    return {number for start, end in of for number in range(start, end)}


@given(SETS, SETS)
def test_they_are_what_sets_of_numbers_are(left: frozenset[int], right: frozenset[int]) -> None:
    ours, theirs = of_numbers(left), of_numbers(right)
    assert numbers(union(ours, theirs)) == left | right
    assert numbers(minus(ours, theirs)) == left - right
    assert numbers(common(ours, theirs)) == left & right
    assert count(ours) == len(left)
    assert minus(ours, theirs) == of_numbers(left - right), "one form for one set"


@given(SETS, st.integers(0, 130), st.integers(1, 9))
def test_the_first_are_the_first(some: frozenset[int], most: int, intervals: int) -> None:
    found = first(of_numbers(some), most, intervals)
    assert len(found) <= intervals
    assert sorted(numbers(found)) == sorted(some)[: count(found)]
    assert count(found) <= most


@given(st.lists(st.integers(1, 10**9), max_size=300))
def test_what_is_written_is_read(steps: list[int]) -> None:
    found, at = [], 0
    for gap, length in zip(steps[::2], steps[1::2], strict=False):
        found.append((at + gap, at + gap + length))
        at += gap + length
    text = to_text(tuple(found))
    assert from_text(text) == tuple(found)
    assert text.startswith("z") or len(text) <= READABLE_CHARACTERS


def test_as_people_write_ranges() -> None:
    assert to_text(()) == ""
    assert to_text(((0, 42), (43, 44))) == "0-41,43"
    assert to_text(whole(10**12)) == "0-999999999999"
    assert numbers_of(((0, 42), (43, 44))) == "1-42,44"
    every_other = tuple((start, start + 1) for start in range(0, 46, 2))
    assert numbers_of(every_other) == f"{','.join(map(str, range(1, 40, 2)))} and 3 more"


@pytest.mark.parametrize("text", ["1-0", "3,2", "1,2-", "0-99999999999999999", "zAAAA"])
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)


@given(
    st.dictionaries(
        st.integers(0, 99_999),
        st.tuples(st.integers(1, 99), st.integers(1, 10**6), SETS.map(of_numbers)),
        max_size=60,
    )
)
def test_leases_are_read_as_they_were_written(leases: dict[int, tuple[int, int, Intervals]]) -> None:
    written = tuple(Lease(worker, *leases[worker]) for worker in sorted(leases))
    assert leases_from_text(leases_to_text(written)) == written


def as_text(raw: bytes) -> str:
    return "z" + base64.b64encode(zlib.compress(raw, 9)).decode()


def test_very_many_intervals_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort of 80,000, as 10,000 workers of eight slots hold, kept the controller's event loop from its turn."""
    sorted_at_once = []

    def spy(items: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        sorted_at_once.append(len(items))
        return sorted(items)

    places = random.Random(1).sample(range(0, 160_000, 2), 80_000)
    elements = [(place, place + 1) for place in places]
    expected = tuple(sorted(elements))
    leases = [Lease(n, 1, n, tuple(sorted(elements[8 * n : 8 * n + 8]))) for n in range(10_000)]
    monkeypatch.setattr(intervals, "sorted", spy, raising=False)
    assert union(*((each,) for each in elements)) == expected
    assert list(leases_from_text(leases_to_text(leases))) == leases
    assert len(sorted_at_once) == 40 and max(sorted_at_once) <= 4_096


def test_a_short_text_of_a_number_without_end_is_refused_at_once() -> None:
    def refuse(digits: int) -> None:
        text = as_text(b"\xff" * digits + b"\x01")
        assert len(text) < 2_000
        with pytest.raises(ValueError, match="a number that is too large"):
            from_text(text)

    assert growth(refuse, 10_000, 1_000_000) < 1_000, "100 times as many; squared is 10,000"


def test_a_short_text_of_very_many_ranges_is_refused_where_few_are_expected() -> None:
    text = as_text(b"\x01" * 1_000_000)
    assert len(text) < 2_000
    assert len(from_text(text)) == 500_000
    with counted() as count:
        for most in (3, 4_000):
            with pytest.raises(ValueError, match="too long"):
                from_text(text, most)
    assert count.calls < 1_000
    with pytest.raises(ValueError, match="4 are the most"):
        from_text(as_text(b"\x01" * 20), 4)
    assert len(from_text(as_text(b"\x01" * 8), 4)) == 4
