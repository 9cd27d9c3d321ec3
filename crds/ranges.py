"""Indices as text, such as `0-41,43-9998`: a status lists members without an entry per worker.

The format is that of `crds.intervals`, packed where it would be long. Controller and agents share this
module, so it imports only the standard library and runs on Python 3.10.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, count, islice, starmap

from crds import intervals
from crds.intervals import READABLE_CHARACTERS, packed, signed, unpacked, unsigned

MAX_INDEX = 99_999
MAX_CHARACTERS = 22_000
"""Characters of any set of indices up to MAX_INDEX, packed."""
MAX_RANKED_CHARACTERS = 4_000
"""Characters of members that do not ascend: 2,000 that are scattered over domains of 18, or 10,000 in runs of
18."""
_RANKED = "r"
"""First character of members in rank order, packed."""
RANKED_PATTERN = intervals.PATTERN.replace("|z[", "|[zr][")
OTHERS = "*"
"""In `grouped`: the members that no other incarnation lists."""
EACH = "each"
"""In `grouped`: the incarnations of all members, packed, in the order of the members."""
MAX_LISTED_INCARNATIONS = READABLE_CHARACTERS // 2
MAX_INCARNATIONS_CHARACTERS = 32_000
"""Characters of 10,000 different incarnations in any order, packed."""


def to_text(indices: Sequence[int]) -> str:
    """Return the set as text; equal sets give equal texts."""
    return intervals.to_text(tuple(_runs(indices)))


def from_text(text: str) -> list[int]:
    """Read a set of indices, ascending.

    Raises:
        ValueError: the text is malformed, or has an index above MAX_INDEX.
    """
    return _expanded(intervals.from_text(text))


def check(indices: Sequence[int]) -> None:
    """Check a set of indices.

    Raises:
        ValueError: they do not ascend, or are not from 0 to MAX_INDEX.
    """
    if indices and not (indices[0] >= 0 and indices[-1] <= MAX_INDEX):
        raise ValueError(f"indices are from 0 to {MAX_INDEX}")
    if not _ascends(indices):
        raise ValueError("indices must ascend")


def ranked_to_text(members: Sequence[int]) -> str:
    """Return the members of a world in rank order as text; if they ascend, the text of their set."""
    if _ascends(members):
        return to_text(members)
    runs = list(_runs(members))
    text = intervals.as_ranges(runs)
    if len(text) <= READABLE_CHARACTERS:
        return text
    ends = (0, *(end for _, end in runs))
    gaps = (unsigned(start - before) for before, (start, _) in zip(ends, runs, strict=False))
    return _RANKED + packed([*gaps, *(end - start for start, end in runs)])[1:]


def ranked_from_text(text: str) -> list[int]:
    """Read what `ranked_to_text` wrote.

    Raises:
        ValueError: the text is malformed, names a member twice, or has an index above MAX_INDEX.
    """
    if text.startswith("z"):
        return from_text(text)
    runs = _unpacked_ranked(text) if text.startswith(_RANKED) else intervals.runs_from(text)
    if sum(end - start for start, end in runs) > MAX_INDEX + 1:  # a short text may name billions
        raise ValueError("a member is named twice")
    members = _expanded(runs)
    check_ranked(members)
    return members


def check_ranked(members: Sequence[int]) -> None:
    """Check the members of a world.

    Raises:
        ValueError: a member occurs twice, or is not from 0 to MAX_INDEX.
    """
    if members and not (min(members) >= 0 and max(members) <= MAX_INDEX):
        raise ValueError(f"indices are from 0 to {MAX_INDEX}")
    if len(set(members)) != len(members):
        raise ValueError("a member is named twice")


def as_ranges(indices: Iterable[int]) -> str:
    """Return ranges such as `0-3,9,5`, in the given order, never packed."""
    return intervals.as_ranges(_runs(list(indices)))


def from_ranges(text: str) -> list[int]:
    """Read what `as_ranges` wrote, in its order.

    Raises:
        ValueError: the text is malformed, or has an index above MAX_INDEX.
    """
    return _expanded(intervals.runs_from(text))


def grouped(members: Sequence[int], incarnations: Sequence[int]) -> dict[str, str]:
    """Return the members of each incarnation but 1, as ranges by incarnation.

    Where that would be long, the incarnations of all members are packed instead.

    Args:
        members: indices, in rank order.
        incarnations: those of the members, in the same order.
    """
    counts = Counter(incarnations)
    if not counts.keys() - {1}:
        return {}
    most = max(counts, key=lambda incarnation: (counts[incarnation], -incarnation))
    of_each: dict[int, list[int]] = {}
    for index, incarnation in zip(members, incarnations, strict=True):
        if incarnation != most:
            of_each.setdefault(incarnation, []).append(index)
    groups = {str(incarnation): as_ranges(of_each[incarnation]) for incarnation in sorted(of_each)}
    if most != 1:
        groups |= {str(most): OTHERS}
    is_readable = sum(map(len, chain(groups, groups.values()))) <= READABLE_CHARACTERS
    return groups if is_readable else {EACH: packed(incarnations)}


def incarnations_of(members: Sequence[int], groups: Mapping[str, str]) -> list[int]:
    """Return the incarnation of each member, from the result of `grouped`.

    Raises:
        ValueError: a text is malformed.
    """
    if EACH in groups:
        found = unpacked(groups[EACH])
        if len(found) != len(members):
            raise ValueError(f"{len(members)} members have {len(found)} incarnations")
        return found
    others = next((int(incarnation) for incarnation, text in groups.items() if text == OTHERS), 1)
    listed = {
        index: int(incarnation)
        for incarnation, text in groups.items()
        if text != OTHERS
        for index in ranked_from_text(text)
    }
    return [listed.get(index, others) for index in members]


def _ascends(indices: Sequence[int]) -> bool:
    return all(map(operator.lt, indices, islice(indices, 1, None)))


def _unpacked_ranked(text: str) -> list[tuple[int, int]]:
    numbers = unpacked(text)
    found: list[tuple[int, int]] = []
    half, at = len(numbers) // 2, 0
    for gap, length in zip(numbers[:half], numbers[half:], strict=True):
        start = at + signed(gap)
        at = start + length
        if not 0 <= start < at <= MAX_INDEX + 1:
            raise ValueError(f"indices are from 0 to {MAX_INDEX}")
        found.append((start, at))
    return found


def _runs(indices: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the runs of consecutive indices as intervals, in the given order."""
    if not indices:
        return ()
    # The loop over as many as 10,000 indices runs in C.
    steps = map(operator.sub, islice(indices, 1, None), indices)
    ends = [*compress(count(), map((1).__ne__, steps)), len(indices) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return ((indices[start], indices[end] + 1) for start, end in zip(starts, ends, strict=True))


def _expanded(runs: Sequence[tuple[int, int]]) -> list[int]:
    if any(end > MAX_INDEX + 1 for _, end in runs):
        raise ValueError(f"indices are from 0 to {MAX_INDEX}")
    return list(chain.from_iterable(starmap(range, runs)))
