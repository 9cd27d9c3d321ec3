"""Decides which rank writes what of a checkpoint into storage: each rank alike, from what all have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def encode_plan(pieces: Iterable[Piece]) -> bytes:
    """Write what a rank has, as JSON."""
    return json.dumps([[getattr(piece, name) for name in Piece.__slots__] for piece in pieces]).encode()


def decode_plan(data: bytes) -> list[Piece]:
    """Read it; raise ValueError or TypeError where it is none."""
    return [
        Piece(name, dtype, tuple(shape), tuple(whole), tuple(offset), *others)
        for name, dtype, shape, whole, offset, *others in json.loads(data)
    ]


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


def divide(pieces: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """Give each piece to one of the ranks that have it.

    Where their contents are the same, it is the one that has the least to write so far, the largest pieces
    first. Where they differ, as the buffers of BatchNorm do, it is the lowest, since a resumed DDP takes over
    what rank 0 has. (What ranks hold as their own has another name on each by now.)

    Returns:
        what each rank writes.
    """
    written: list[list[Piece]] = [[] for _ in pieces]
    load = [0] * len(pieces)
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
