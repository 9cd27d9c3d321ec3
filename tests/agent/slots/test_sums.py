"""The sum of words tells of each word that changes, and of each two that change places."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.slots.sums import _ROWS_PER_THREAD, ROW_WORDS, WordSum, sum_of

many = settings(max_examples=50, deadline=None)
sizes = st.integers(1, 8 * (3 * ROW_WORDS + 5))


BYTES = random.Random(1).randbytes(8 * 70 * ROW_WORDS)


def made(size: int, seed: int) -> bytearray:
    return bytearray(BYTES[seed : seed + size])


@many
@given(size=sizes, seed=st.integers(0, 99), data=st.data())
def test_any_bit_that_changes_changes_the_sum(size: int, seed: int, data: st.DataObject) -> None:
    written = made(size, seed)
    before = sum_of(written)
    written[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert sum_of(written) != before


@many
@given(words=st.integers(2, 3 * ROW_WORDS + 5), seed=st.integers(0, 99), data=st.data())
def test_two_words_that_change_places_change_the_sum(words: int, seed: int, data: st.DataObject) -> None:
    written = made(8 * words, seed)
    one = data.draw(st.integers(0, words - 2))
    other = data.draw(st.integers(one + 1, words - 1))
    here, there = slice(8 * one, 8 * one + 8), slice(8 * other, 8 * other + 8)
    before = sum_of(written)
    written[here], written[there] = written[there], written[here]
    assert sum_of(written) != before


@many
@given(rows=st.lists(st.integers(1, 3), max_size=4), rest=st.integers(0, 8 * ROW_WORDS - 1))
def test_parts_have_the_sum_of_the_whole(rows: list[int], rest: int) -> None:
    sizes = [8 * ROW_WORDS * count for count in rows] + ([rest] if rest else [])
    written, total, at = made(sum(sizes), 1), WordSum(), 0
    for size in sizes:
        total.add_bytes(memoryview(written)[at : at + size])
        at += size
    assert total.total() == sum_of(written)


@pytest.mark.real
def test_much_has_the_same_sum_in_any_number_of_threads() -> None:
    size = 8 * ROW_WORDS
    written = made(size * 64, 2) * (3 * _ROWS_PER_THREAD // 64) + made(8 * 7 + 3, 4)
    parts = WordSum()
    for at in range(0, len(written), size * 64):
        parts.add_bytes(memoryview(written)[at : at + size * 64])
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert sum_of(written) == parts.total()
    finally:
        torch.set_num_threads(before)


def test_a_device_that_multiplies_no_integers_has_the_same_sum() -> None:
    words = torch.frombuffer(made(8 * (5 * ROW_WORDS + 7), 3), dtype=torch.int64)

    class Elsewhere(torch.Tensor):
        is_cpu = False

    total = WordSum()
    total.add(words.as_subclass(Elsewhere))
    assert total.total() == sum_of(words.numpy().data.cast("B"))
