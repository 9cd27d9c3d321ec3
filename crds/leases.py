"""The leases of a shard set as text, of all workers together: who may work on which elements.

    0.1.17=0-41;1.1.18=42-83,90      worker 0, incarnation 1, lease 17: elements 0 to 41; and worker 1's

Where that would be long it is packed in columns, in the order of the elements: neighbours were given one
after the other, so all columns but the workers' deflate to little. 1,000 leases take some 3 KB.

Controller and agents share this module, so it imports the standard library alone and runs on Python 3.10.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from crds.intervals import READABLE_CHARACTERS, Intervals, from_text, packed, to_text, unpacked


@dataclass(frozen=True)
class Lease:
    """What one incarnation of a worker may work on, and nobody else meanwhile."""

    worker: int
    incarnation: int
    number: int
    """Given once in a set; so a report on it cannot be taken for one on an earlier lease."""
    elements: Intervals


def leases_to_text(leases: Sequence[Lease]) -> str:
    """The leases as text, the same for the same leases.

    Args:
        leases: in the order of their workers.
    """
    text = ";".join(
        f"{lease.worker}.{lease.incarnation}.{lease.number}={to_text(lease.elements)}" for lease in leases
    )
    if len(text) <= READABLE_CHARACTERS:
        return text
    ordered = sorted(leases, key=lambda lease: lease.elements)
    intervals = [interval for lease in ordered for interval in lease.elements]
    ends = [0, *(end for _, end in intervals)]
    return packed(
        [
            len(ordered),
            *(lease.worker for lease in ordered),
            *(lease.incarnation for lease in ordered),
            *(len(lease.elements) for lease in ordered),
            *map(_unsigned, _steps([lease.number for lease in ordered])),
            *(_unsigned(start - before) for before, (start, _) in zip(ends, intervals, strict=False)),
            *(end - start for start, end in intervals),
        ]
    )


def leases_from_text(text: str) -> tuple[Lease, ...]:
    """The leases.

    Raises:
        ValueError: it is no such text.
    """
    if not text.startswith("z"):
        return tuple(_lease(each) for each in text.split(";")) if text else ()
    columns = iter(unpacked(text))
    size = next(columns, 0)
    workers, incarnations, counts, steps = (list(islice(columns, size)) for _ in range(4))
    gaps, lengths = (list(islice(columns, sum(counts))) for _ in range(2))
    if len(lengths) != sum(counts) or len(steps) != size or next(columns, None) is not None:
        raise ValueError("packed leases are torn")
    numbers = accumulate(map(_signed, steps))
    intervals, at = [], 0
    for gap, length in zip(map(_signed, gaps), lengths, strict=True):
        intervals.append((at + gap, at + gap + length))
        at += gap + length
    rest = iter(intervals)
    found = (
        Lease(worker, incarnation, number, tuple(islice(rest, count)))
        for worker, incarnation, number, count in zip(workers, incarnations, numbers, counts, strict=True)
    )
    return tuple(sorted(found, key=lambda lease: lease.worker))


def _steps(numbers: Sequence[int]) -> Iterable[int]:
    return map(operator.sub, numbers, [0, *numbers])


def _unsigned(number: int) -> int:
    """Map 0, -1, 1, -2, … to 0, 1, 2, 3, …"""
    return 2 * number if number >= 0 else -2 * number - 1


def _signed(number: int) -> int:
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def _lease(text: str) -> Lease:
    whose, _, elements = text.partition("=")
    try:
        worker, incarnation, number = map(int, whose.split("."))
    except ValueError:
        raise ValueError(f"{text[:20]!r} is no lease") from None
    return Lease(worker, incarnation, number, from_text(elements))
