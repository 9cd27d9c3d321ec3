"""Decides which rank writes what of a checkpoint into storage: each rank alike, from what all have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from agent.slots.format import Header
from agent.slots.slot import Slot
from dlr.checkpoint.state import RNG, VALUES

Place = tuple[str, tuple[int, ...]]
"""A tensor's name, and where in it a part begins."""

_OWN = re.compile(r"dlr\.rank-(\d+)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor that a rank has, or its part of a DTensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    nbytes: int
    sum: int
    is_buffer: bool = False
    """Whether it is of a buffer of a module."""

    @property
    def place(self) -> Place:
        """The same on all ranks that have it."""
        return self.name, self.global_offset if any(self.global_offset) else ()

    @property
    def content(self) -> tuple[object, ...]:
        """The same where the contents are."""
        return self.sum, self.shape, self.dtype

    @property
    def is_nothing(self) -> bool:
        """Whether the rank has no part of a tensor that others have."""
        return 0 in self.shape and 0 not in self.global_shape


def encode_plan(pieces: Sequence[Piece]) -> bytes:
    """Write what a rank has: its bytes, then a row of each piece, which is empty where the piece is nothing.

    A row is the piece's place and its other fields, as JSON. So places are compared without reading them.
    """
    return b"\n".join([str(sum(piece.nbytes for piece in pieces)).encode(), *map(_row, pieces)])


def _row(piece: Piece) -> bytes:
    if piece.is_nothing:
        return b""
    others = (piece.dtype, piece.shape, piece.global_shape, piece.global_offset, piece.nbytes, piece.sum)
    return b"\t".join(json.dumps(each).encode() for each in (piece.place, (*others, piece.is_buffer)))


@cache
def decode_row(row: bytes) -> Piece:
    """Read a piece of a plan; ranks that have the same have one row."""
    (name, _), others = map(json.loads, row.split(b"\t"))
    dtype, shape, global_shape, global_offset, nbytes, sum_, is_buffer = others
    return Piece(
        name, dtype, tuple(shape), tuple(global_shape), tuple(global_offset), nbytes, sum_, is_buffer
    )


@dataclass(frozen=True)
class Plans:
    """What all ranks have. Only what several of them have is read in full."""

    contested: tuple[Mapping[int, Piece], ...]
    """The pieces of places that other ranks have too: a mapping of each rank, by number in its plan."""
    alone: tuple[Sequence[int], ...]
    """The numbers of the pieces of places that no other rank has, of each rank."""
    loads: tuple[int, ...]
    """Bytes of these, of each rank."""

    @classmethod
    def read(cls, plans: Iterable[bytes], everything: bool = False) -> Plans:
        """Read the plans of all ranks.

        Args:
            everything: take each piece for a contested one.
        """
        totals, rows = [], []
        first: dict[bytes, tuple[int, int]] = {}
        contested: list[set[int]] = []
        for rank, plan in enumerate(plans):
            total, *of_rank = plan.split(b"\n")
            totals.append(int(total))
            rows.append(of_rank)
            contested.append(set())
            for number, row in enumerate(of_rank):
                place = row.partition(b"\t")[0]
                earlier = first.setdefault(place, (rank, number))
                if row and (everything or earlier[0] != rank):
                    contested[rank].add(number)
                    contested[earlier[0]].add(earlier[1])
        found = [
            {number: decode_row(rows[rank][number]) for number in sorted(numbers)}
            for rank, numbers in enumerate(contested)
        ]
        decode_row.cache_clear()
        loads = [
            total - sum(piece.nbytes for piece in pieces.values())
            for total, pieces in zip(totals, found, strict=True)
        ]
        alone = [
            [number for number, row in enumerate(of_rank) if row and number not in pieces]
            for of_rank, pieces in zip(rows, found, strict=True)
        ]
        return cls(tuple(found), tuple(alone), tuple(loads))


def pieces_of(slot: Slot, header: Header, rank: int) -> list[Piece]:
    """What a rank's slot holds. It has its sums."""
    return [
        Piece(
            name_of_rank(entry.name, rank),
            entry.dtype,
            entry.shape,
            entry.shape if entry.global_shape is None else entry.global_shape,
            (0,) * len(entry.shape) if entry.global_offset is None else entry.global_offset,
            entry.nbytes,
            sum_,
            entry.is_buffer,
        )
        for entry, sum_ in zip(header.entries, slot.sums(header), strict=False)
    ]


def name_of_rank(name: str, rank: int) -> str:
    """What a tensor is called in storage, of which every rank has its own."""
    return f"{name}.{rank}" if name in (VALUES, RNG) else name


def own_name(name: str, rank: int) -> str:
    """What a tensor is called in storage, of which ranks hold different ones under one name."""
    return f"dlr.rank-{rank}.{name}"


def owner_of(name: str) -> tuple[int | None, str]:
    """Return the rank that owns a tensor, None without one, and that rank's name for it."""
    match = _OWN.fullmatch(name)
    return (None, name) if match is None else (int(match[1]), match[2])


def divide(pieces: Sequence[Sequence[Piece]], loads: Sequence[int] = ()) -> list[list[Piece]]:
    """Give each piece to one of the ranks that have it.

    Where their contents are the same, it is the one that has the least to write so far, the largest pieces
    first. Where they differ, as the buffers of BatchNorm do, it is the lowest, since a resumed DDP takes over
    what rank 0 has. (What ranks hold as their own has another name on each by now.)

    Args:
        loads: the bytes that each rank writes besides; none by default.

    Returns:
        what each rank writes.
    """
    written: list[list[Piece]] = [[] for _ in pieces]
    load = list(loads) or [0] * len(pieces)
    having = holders(dict(enumerate(pieces)))
    for place in sorted(having, key=lambda place: (-having[place][0][1].nbytes, place)):
        rank, piece = min(having[place], key=lambda held: (load[held[0]], held[0]))
        written[rank].append(piece)
        load[rank] += piece.nbytes
    return written


def holders(
    pieces: Mapping[int, Sequence[Piece]],
) -> dict[Place, list[tuple[int, Piece]]]:
    """Which ranks have a piece; of those that have different contents, the lowest alone.

    Args:
        pieces: of each rank, the lowest first.
    """
    having: dict[Place, list[tuple[int, Piece]]] = defaultdict(list)
    for rank, of_rank in pieces.items():
        for piece in of_rank:
            if not piece.is_nothing:
                having[piece.place].append((rank, piece))
    for place, held in having.items():
        if len({piece.content for _, piece in held}) > 1:
            having[place] = held[:1]
    return having
