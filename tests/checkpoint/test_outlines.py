"""Few slots are opened where a world changes its size, and all that are needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.checkpoint.outlines import boxes_of, first_to_open, outline_of, overlapping
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.state import VALUES

SIZES = (1, 3, 64, 1000, 4096, 50257)
"""Rows of the tensors, which FSDP2 shares out as `torch.chunk` does."""


def chunk(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """First row and rows of a rank."""
    each = -(-rows // ranks)
    first = min(rank * each, rows)
    return first, min(each, rows - first)


def pieces(rank: int, ranks: int, *, own: bool = False) -> list[Piece]:
    shared = []
    for rows in SIZES:
        first, count = chunk(rows, ranks, rank)
        shared.append(
            Piece(f"w{rows}", "float32", (count, 8), (rows, 8), (first, 0), 32 * count, rows + first)
        )
    return [
        *shared,
        Piece("norm", "float32", (8,), (8,), (0,), 32, rank if own else 5),
        Piece("running_mean", "float32", (8,), (8,), (0,), 32, rank, is_buffer=True),
        Piece(f"{VALUES}.{rank}", "uint8", (9,), (9,), (0,), 9, rank),
    ]


def opened(before: int, now: int, rank: int) -> set[int]:
    outlines = {old: outline_of(pieces(old, before)) for old in range(before)}
    needed = boxes_of((p.shape, p.global_shape, p.global_offset) for p in pieces(rank, now))
    return first_to_open(outlines, rank) | overlapping(outlines, needed)


@given(before=st.integers(1, 40), now=st.integers(2, 40), data=st.data())
def test_what_is_opened_has_all_that_a_rank_needs(before: int, now: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, now - 1))
    found = opened(before, now, rank)
    assert 0 in found, "the values are rank 0's, and so are buffers that differ"
    for rows in SIZES:
        first, count = chunk(rows, now, rank)
        there = {
            row
            for old in found
            for start, size in [chunk(rows, before, old)]
            for row in range(max(start, first), min(start + size, first + count))
        }
        assert there == set(range(first, first + count))


@pytest.mark.parametrize("ranks", [512, 2048])
def test_slots_opened_are_linear_in_the_number_of_ranks(ranks: int) -> None:
    outlines = {old: outline_of(pieces(old, ranks)) for old in range(ranks)}
    counts = []
    for rank in range(0, ranks - 1, ranks // 64):
        needed = boxes_of((p.shape, p.global_shape, p.global_offset) for p in pieces(rank, ranks - 1))
        share = {old for old in range(ranks) if old % (ranks - 1) == rank}
        counts.append(len(first_to_open(outlines, rank) | overlapping(outlines, needed) | share))
    assert sum(counts) / len(counts) <= 16, counts


@pytest.mark.parametrize("ranks", [2, 5])
def test_where_each_rank_has_its_own_under_one_name_all_are_compared(ranks: int) -> None:
    outlines = {old: outline_of(pieces(old, ranks, own=True)) for old in range(ranks)}
    assert first_to_open(outlines, 1) == set(range(ranks))
