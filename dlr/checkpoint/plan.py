"""Who writes what of a checkpoint into storage: decided alike by every rank, from what all of them have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.memory.layout import Header
from agent.memory.slot import Slot
from dlr.checkpoint.state import RNG, VALUES


@dataclass(frozen=True)
class Piece:
    """A tensor that a rank has, or its part of a DTensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    nbytes: int
    sum: int

    @property
    def place(self) -> tuple[str, tuple[int, ...]]:
        """The same on all ranks that have it."""
        return self.name, self.global_offset

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Piece:
        """Read it from JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }
        return cls(**values)


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
        )
        for entry, sum_ in zip(header.entries, slot.sums(header), strict=False)
    ]


def name_of_rank(name: str, rank: int) -> str:
    """What a tensor is called in storage, of which every rank has its own."""
    return f"{name}.{rank}" if name in (VALUES, RNG) else name


def divide(pieces: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """Give each piece to one of the ranks that have it.

    Where their contents are the same, it is the one that has the least to write so far, the largest pieces
    first. Where they differ, as the buffers of BatchNorm do, it is the lowest, since a resumed DDP takes over
    what rank 0 has.

    Args:
        pieces: of each rank.

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
) -> dict[tuple[str, tuple[int, ...]], list[tuple[int, Piece]]]:
    """Which ranks have a piece; of those that have different contents, the lowest alone.

    Args:
        pieces: of each rank, the lowest first.
    """
    having: dict[tuple[str, tuple[int, ...]], list[tuple[int, Piece]]] = defaultdict(list)
    for rank, of_rank in pieces.items():
        for piece in of_rank:
            if 0 not in piece.shape or 0 in piece.global_shape:  # else a part that has nothing
                having[piece.place].append((rank, piece))
    for place, held in having.items():
        if len({(piece.sum, piece.shape, piece.dtype) for _, piece in held}) > 1:
            having[place] = held[:1]
    return having
