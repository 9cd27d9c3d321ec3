"""Chooses the side of each cross that has room for its label. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


def sides(
    marks: Sequence[float], widths: Sequence[float], *, around: float, begin: float, end: float
) -> list[Side | None]:
    """Return the side of each mark's label; None where it would lie under a mark or another label.

    Args:
        marks: where they are, in any unit, from the left to the right.
        widths: of their labels; 0 for a mark without one.
        around: how far a mark reaches to each side.
        begin, end: of the line.
    """
    taken = [(mark - around, mark + around) for mark in marks]
    found: list[Side | None] = []
    for mark, width in zip(marks, widths, strict=True):
        places = {
            Side.RIGHT: (mark + around, mark + around + width),
            Side.LEFT: (mark - around - width, mark - around),
        }
        side = next(
            (
                side
                for side, (first, last) in places.items()
                if width and begin <= first and last <= end and not _overlaps(first, last, taken)
            ),
            None,
        )
        found.append(side)
        if side is not None:
            taken.append(places[side])
    return found


def _overlaps(first: float, last: float, taken: Sequence[tuple[float, float]]) -> bool:
    return any(begin < last and end > first for begin, end in taken)
