"""The leases of a shard set as text, of all workers together: who may work on which elements.

    0.1.17=0-41;1.1.18=42-83,90      worker 0, incarnation 1, lease 17: elements 0 to 41; and worker 1's

Where that would be long it is packed in columns (workers, incarnations, numbers, counts, starts, lengths), of
which most are constant and so deflate to nothing: 1,000 leases take some 8 KB.

Controller and agents share this module, so it imports the standard library alone and runs on Python 3.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    workers, before = [], 0
    for lease in leases:
        workers.append(lease.worker - before)
        before = lease.worker
    newest = max(lease.number for lease in leases)
    intervals = [interval for lease in leases for interval in lease.elements]
    return packed(
        [
            len(leases),
            newest,
            *workers,
            *(lease.incarnation for lease in leases),
            *(newest - lease.number for lease in leases),
            *(len(lease.elements) for lease in leases),
            *(start for start, _ in intervals),
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
    numbers = iter(unpacked(text))
    try:
        leases, newest = next(numbers), next(numbers)
        workers, incarnations, ages, counts = (
            [next(numbers) for _ in range(leases)] for _ in ("workers", "incarnations", "ages", "counts")
        )
        starts = [next(numbers) for _ in range(sum(counts))]
        lengths = [next(numbers) for _ in range(sum(counts))]
    except (StopIteration, RuntimeError) as error:
        raise ValueError("packed leases are torn") from error
    found, worker, at = [], 0, 0
    for i in range(leases):
        worker += workers[i]
        places = range(at, at + counts[i])
        elements = tuple((starts[place], starts[place] + lengths[place]) for place in places)
        found.append(Lease(worker, incarnations[i], newest - ages[i], elements))
        at += counts[i]
    return tuple(found)


def _lease(text: str) -> Lease:
    whose, _, elements = text.partition("=")
    try:
        worker, incarnation, number = map(int, whose.split("."))
    except ValueError:
        raise ValueError(f"{text[:20]!r} is no lease") from None
    return Lease(worker, incarnation, number, from_text(elements))
