"""Which slots of a world of another size a rank opens: decided by an outline of each, not by its header.

To read all headers, each of N ranks would read those of all N. So each reads a few, and all tell each other
the outlines, of some hundred bytes. What these cannot tell apart is opened.
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
"""In a dimension: the first place, and the one behind the last."""
Kind = tuple[tuple[int, int], ...]
"""The dimensions in which a tensor is shared out, and its size in each. A model has few kinds."""
Boxes = Mapping[Kind, tuple[Interval, ...]]
"""What is there of any tensor of a kind, in each of its dimensions."""


@dataclass(frozen=True)
class Outline:
    """What a slot holds."""

    boxes: Boxes
    """The boxes of its parts of DTensors."""
    names: str
    """Digest of the names, types and global shapes of its tensors."""
    places: str
    """Digest of which parts of them it has."""
    content: str
    """Digest of what is in these, but for buffers."""
    whole_names: str
    """Digest of the names of its whole tensors, but for buffers."""
    whole: str
    """Digest of what is in these."""

    def to_wire(self) -> dict[str, Any]:
        """Return its fields, as JSON has them."""
        return {**vars(self), "boxes": [*self.boxes.items()]}

    @classmethod
    def of_wire(cls, fields: Any) -> Outline:
        """Make it of them; raise ValueError, TypeError or KeyError where they are not an outline's."""
        boxes = {_pairs(kind): _pairs(intervals) for kind, intervals in fields["boxes"]}
        digests = {name: fields[name] for name in ("names", "places", "content", "whole_names", "whole")}
        if any(len(box) != len(kind) for kind, box in boxes.items()):
            raise ValueError("a box has other dimensions than its kind")
        return cls(boxes, **{name: str(digest) for name, digest in digests.items()})


def _pairs(told: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(second)) for first, second in told)


def outline_of(pieces: Sequence[Piece]) -> Outline:
    """Return the outline of what a slot holds."""
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
"""Shape and global shape of a part, and where in the whole it begins."""


def boxes_of(parts: Iterable[Cut]) -> dict[Kind, tuple[Interval, ...]]:
    """Return the boxes around parts of tensors; whole ones, and parts with nothing in them, have none."""
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
    """Return the old ranks whose slots say what tensors there are, and hold the first of those that differ.

    Args:
        outlines: of the slots, by old rank.

    Returns:
        All, where ranks hold different contents in the same place.
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
    """Return the old ranks whose slots may hold a part of what is needed."""
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
