"""Choice of the slots that a rank opens after a change of the world size, by the slots' outlines.

Each of N ranks would have to read N headers. Instead each reads a few, and the ranks exchange outlines of a
few hundred bytes. A rank opens all slots that the outlines do not rule out.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlr.checkpoint.plan import Piece
from dlr.checkpoint.state import RNG, VALUES

Interval = tuple[int, int]
"""Half-open interval of indices in one dimension."""
Kind = tuple[tuple[int, int], ...]
"""Sharded dimensions of a tensor, each with the global size. A model has few kinds."""
Boxes = Mapping[Kind, tuple[Interval, ...]]
"""Bounding box of the parts of all tensors of a kind, an interval per sharded dimension."""


@dataclass(frozen=True)
class Outline:
    """Summary of a slot's contents."""

    boxes: Boxes
    """Bounding boxes of its parts of DTensors."""
    names: str
    """Digest of the names, dtypes and global shapes of its tensors."""
    places: str
    """Digest of the positions of its parts."""
    content: str
    """Digest of the contents of these parts, without buffers."""
    whole_names: str
    """Digest of the names of its whole tensors, without buffers."""
    whole: str
    """Digest of the contents of these tensors."""

    def to_wire(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**vars(self), "boxes": [*self.boxes.items()]}

    @classmethod
    def of_wire(cls, fields: Any) -> Outline:
        """Build an outline from `to_wire`'s fields; raise ValueError, TypeError or KeyError for others."""
        boxes = {_pairs(kind): _pairs(intervals) for kind, intervals in fields["boxes"]}
        digests = {name: fields[name] for name in ("names", "places", "content", "whole_names", "whole")}
        if any(len(box) != len(kind) for kind, box in boxes.items()):
            raise ValueError("a box has other dimensions than its kind")
        return cls(boxes, **{name: str(digest) for name, digest in digests.items()})


def _pairs(pairs: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in pairs)


def outline_of(pieces: Sequence[Piece]) -> Outline:
    """Return the outline of a slot with these pieces."""
    shared = sorted(
        (piece for piece in pieces if not piece.name.startswith((VALUES, RNG))), key=lambda piece: piece.name
    )
    trained = [piece for piece in shared if not piece.is_buffer]
    whole = [piece for piece in trained if piece.shape == piece.global_shape]
    return Outline(
        boxes_of((piece.shape, piece.global_shape, piece.global_offset) for piece in shared),
        _digest((piece.name, piece.dtype, piece.global_shape) for piece in shared),
        _digest((piece.name, piece.global_offset, piece.shape) for piece in shared),
        _digest((piece.name, piece.content) for piece in trained),
        _digest(piece.name for piece in whole),
        _digest((piece.name, piece.content) for piece in whole),
    )


Cut = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Shape, global shape and global offset of a part."""


def boxes_of(parts: Iterable[Cut]) -> dict[Kind, tuple[Interval, ...]]:
    """Return the bounding boxes of parts of tensors; whole tensors and empty parts have none."""
    found: dict[Kind, tuple[Interval, ...]] = {}
    for shape, whole, offset in parts:
        sizes = enumerate(zip(shape, whole, strict=True))
        kind = tuple((dim, all_) for dim, (size, all_) in sizes if size < all_)
        if 0 in shape or not kind:
            continue
        box = tuple((offset[dim], offset[dim] + shape[dim]) for dim, _ in kind)
        found[kind] = tuple(
            (min(low, first), max(high, last))
            for (low, high), (first, last) in zip(found.get(kind, box), box, strict=True)
        )
    return found


def first_to_open(outlines: Mapping[int, Outline], rank: int) -> set[int]:
    """Return the old ranks whose slots are enough to list all tensors and to see which of them differ.

    Args:
        outlines: outlines of the slots, by old rank.

    Returns:
        all ranks, if some hold different contents in the same place.
    """
    for same, content in (("places", "content"), ("whole_names", "whole")):
        contents: dict[str, set[str]] = defaultdict(set)
        for outline in outlines.values():
            contents[getattr(outline, same)].add(getattr(outline, content))
        if any(len(different) > 1 for different in contents.values()):
            return set(outlines)
    lowest: dict[tuple[str, str], int] = {}
    for old in sorted(outlines):
        lowest.setdefault((outlines[old].names, outlines[old].whole_names), old)
    return {*lowest.values(), *({rank} & outlines.keys())}


def overlapping(outlines: Mapping[int, Outline], needed: Boxes) -> set[int]:
    """Return the old ranks whose slots may hold some of the needed parts."""
    return {
        old
        for old, outline in outlines.items()
        if any(_overlap(outline.boxes[kind], needed[kind]) for kind in outline.boxes.keys() & needed.keys())
    }


def _overlap(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    return all(low < last and first < high for (low, high), (first, last) in zip(one, other, strict=True))


def _digest(things: Iterable[object]) -> str:
    found = hashlib.blake2b(digest_size=12)
    for thing in things:
        found.update(repr(thing).encode() + b"\n")
    return found.hexdigest()
