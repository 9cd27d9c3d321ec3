"""Leases of all workers on a shard set, as text: who may work on which elements.

    0.1.17=0-41;1.1.18=42-83,90      worker 0, incarnation 1, lease 17: elements 0 to 41; and worker 1's

Long texts are packed in columns: the leases in the order of their numbers, then their ranges in the order
of the elements, each with the position of its lease. Standard library, Python 3.10.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from crds import names
from crds.intervals import (
    READABLE_CHARACTERS,
    Intervals,
    from_text,
    ordered,
    packed,
    signed,
    to_text,
    unpacked,
    unsigned,
)
from crds.ranges import MAX_INDEX

_TYPES = (names.WORKER, names.CHIEF, names.PS, names.EVALUATOR)
"""Replica types in the order of their numbers."""


@dataclass(frozen=True)
class Lease:
    """Elements that one incarnation of a worker may work on, exclusively."""

    worker: int
    incarnation: int
    number: int
    """Unique within the set, so that a report on one lease cannot be mistaken for another."""
    elements: Intervals


def holder_number(replica_type: str, index: int) -> int:
    """Return the number that identifies a worker in leases: its index, or a higher number for other types."""
    place = _TYPES.index(replica_type) if replica_type in _TYPES else len(_TYPES)
    return place * (MAX_INDEX + 1) + index


def leases_to_text(leases: Sequence[Lease]) -> str:
    """Return the leases as text; equal leases give equal texts."""
    text = ";".join(
        f"{lease.worker}.{lease.incarnation}.{lease.number}={to_text(lease.elements)}" for lease in leases
    )
    if len(text) <= READABLE_CHARACTERS:
        return text
    by_number = sorted(leases, key=lambda lease: lease.number)
    intervals = ordered(
        (start, end, place) for place, lease in enumerate(by_number) for start, end in lease.elements
    )
    ends = [0, *(end for _, end, _ in intervals)]
    return packed(
        [
            len(by_number),
            *map(unsigned, _steps([lease.worker for lease in by_number])),
            *(lease.incarnation for lease in by_number),
            *map(unsigned, _steps([lease.number for lease in by_number])),
            *map(unsigned, _steps([place for *_, place in intervals])),
            *(unsigned(start - before) for before, (start, *_) in zip(ends, intervals, strict=False)),
            *(end - start for start, end, _ in intervals),
        ]
    )


def leases_from_text(text: str) -> tuple[Lease, ...]:
    """Read leases from their text.

    Raises:
        ValueError: the text is malformed.
    """
    if not text.startswith("z"):
        return tuple(_lease(each) for each in text.split(";")) if text else ()
    columns = iter(unpacked(text))
    size = next(columns, 0)
    workers, incarnations, steps = (list(islice(columns, size)) for _ in range(3))
    rest = list(columns)
    places, gaps, lengths = (rest[i * len(rest) // 3 : (i + 1) * len(rest) // 3] for i in range(3))
    elements: list[list[tuple[int, int]]] = [[] for _ in workers]
    at = 0
    try:
        for place, gap, length in zip(accumulate(map(signed, places)), gaps, lengths, strict=True):
            start = at + signed(gap)
            at = start + length
            elements[place].append((start, at))
        numbers = accumulate(map(signed, steps))
        holders = accumulate(map(signed, workers))
        found = map(Lease, holders, incarnations, numbers, map(tuple, elements))
        return tuple(sorted(found, key=lambda lease: lease.worker))
    except (IndexError, ValueError) as error:
        raise ValueError("packed leases are torn") from error


def _steps(numbers: Sequence[int]) -> Iterable[int]:
    return map(operator.sub, numbers, [0, *numbers])


def _lease(text: str) -> Lease:
    whose, _, elements = text.partition("=")
    try:
        worker, incarnation, number = map(int, whose.split("."))
    except ValueError:
        raise ValueError(f"{text[:20]!r} is no lease") from None
    return Lease(worker, incarnation, number, from_text(elements))
