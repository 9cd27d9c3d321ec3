"""Distribution of a checkpoint's pieces over the ranks that write them to storage.

The decision depends only on the pieces of all ranks.
"""

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
"""Name of a tensor, and global offset of a part."""

_OWN = re.compile(r"dlr\.rank-(\d+)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's tensor, or its part of a DTensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    global_offset: tuple[int, ...]
    nbytes: int
    sum: int
    is_buffer: bool = False
    """Whether it belongs to a module's buffer."""

    @property
    def place(self) -> Place:
        """Identity of the piece, equal on all ranks that have it."""
        return self.name, self.global_offset if any(self.global_offset) else ()

    @property
    def content(self) -> tuple[object, ...]:
        """Fingerprint of the contents, equal if the contents are."""
        return self.sum, self.shape, self.dtype

    @property
    def is_nothing(self) -> bool:
        """Whether the rank's part of a tensor is empty."""
        return 0 in self.shape and 0 not in self.global_shape


def encode_plan(pieces: Iterable[Piece]) -> bytes:
    """Encode a rank's pieces as JSON."""
    return json.dumps([[getattr(piece, name) for name in Piece.__slots__] for piece in pieces]).encode()


def decode_plan(data: bytes) -> list[Piece]:
    """Decode a rank's pieces; raise ValueError or TypeError if they are invalid."""
    return [
        Piece(name, dtype, tuple(shape), tuple(whole), tuple(offset), *others)
        for name, dtype, shape, whole, offset, *others in json.loads(data)
    ]


def pieces_of(slot: Slot, header: Header, rank: int) -> list[Piece]:
    """Return the pieces in a rank's slot, which must have its sums."""
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
    """Return the name in storage of a slot's tensor; each rank has its own `VALUES` and `RNG`."""
    return f"{name}.{rank}" if name in (VALUES, RNG) else name


def own_name(name: str, rank: int) -> str:
    """Return the name in storage of a tensor that differs between ranks under one name."""
    return f"dlr.rank-{rank}.{name}"


def owner_of(name: str) -> tuple[int | None, str]:
    """Return the rank that owns a tensor in storage, None without one, and that rank's name for it."""
    match = _OWN.fullmatch(name)
    return (None, name) if match is None else (int(match[1]), match[2])


def divide(pieces: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """Assign each piece to one of the ranks that have it.

    If their contents are equal, it goes to the rank with the least to write so far, the largest pieces first.
    If they differ, as the buffers of BatchNorm do, it goes to the lowest rank, since DDP resumes with rank
    0's. (Tensors of which each rank keeps its own have a different name on each rank here.)

    Returns:
        the pieces that each rank writes.
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
    """Return the ranks that have each piece; if their contents differ, only the lowest.

    Args:
        pieces: pieces of each rank, the lowest first.
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
