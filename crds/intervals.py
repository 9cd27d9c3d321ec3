"""Sets of whole numbers as intervals, and their text in statuses: `0-41,43-999999999998`.

An interval is (start, end), end excluded; a set is a tuple of ascending intervals that do not touch. A
text beyond `READABLE_CHARACTERS` is packed. Standard library, Python 3.10: agents and SDK share this
module.
"""

from __future__ import annotations

import base64
import heapq
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

Intervals = tuple[tuple[int, int], ...]
Item = TypeVar("Item", bound=tuple[int, ...])

NONE: Intervals = ()

LIMIT = 2**53
"""Exclusive upper limit of the numbers: every reader of JSON keeps smaller ones exact."""
READABLE_CHARACTERS = 1_000
"""A longer text is packed: `z`, then base64 of deflated varints."""
RANGES_SHOWN = 20
"""Limit of ranges in a message."""
PATTERN = r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*|z[A-Za-z0-9+/]+=*)?$"

_RANGE = re.compile(r"([0-9]{1,16})(?:-([0-9]{1,16}))?")
_MAX_BYTES = 1 << 20
"""Maximum bytes of an unpacked text."""
_MAX_BITS = 63
_AT_ONCE = 4_096
"""Intervals sorted at a time; no other thread runs meanwhile, for some milliseconds."""
_MANY = 16
"""Ratio of sizes above which the larger set is not walked through."""
_BYTES_OF_A_RUN = 16
"""Maximum bytes of a range's two numbers, which are below LIMIT."""


def ordered(items: Iterable[Item]) -> list[Item]:
    """Sort tuples in portions, so that other threads get a turn."""
    found = list(items)
    parts = [sorted(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE)]
    return parts[0] if len(parts) == 1 else list(heapq.merge(*parts))


def whole(size: int) -> Intervals:
    """Return all numbers from 0 to `size` - 1."""
    return ((0, size),) if size else NONE


def count(of: Intervals) -> int:
    """Return the number of elements."""
    return sum(end - start for start, end in of)


def union(*sets: Intervals) -> Intervals:
    """Return the union of all sets."""
    joined: list[tuple[int, int]] = []
    for start, end in ordered(interval for each in sets for interval in each):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


def minus(left: Intervals, right: Intervals) -> Intervals:
    """Return the numbers in `left` that are not in `right`."""
    if not right:
        return left
    if len(right) * _MANY <= len(left):
        return _without_few(left, right)
    rest: list[tuple[int, int]] = []
    place = 0
    for start, end in left:
        while place < len(right) and right[place][1] <= start:
            place += 1
        at = place
        while at < len(right) and right[at][0] < end:
            if start < right[at][0]:
                rest.append((start, right[at][0]))
            start = max(start, right[at][1])
            at += 1
        if start < end:
            rest.append((start, end))
    return tuple(rest)


def _without_few(left: Intervals, right: Intervals) -> Intervals:
    """Return the same for a small `right`, copying the intervals that it does not touch."""
    rest = list(left)
    for start, end in reversed(right):
        at, after = _touched(left, start), bisect_left(left, (end,))
        if at < after:
            ends = (left[at][0], start), (end, rest[after - 1][1])
            rest[at:after] = [(first, last) for first, last in ends if first < last]
    return tuple(rest)


def _touched(of: Intervals, number: int) -> int:
    """Return the position of the first interval that ends after a number."""
    at = bisect_left(of, (number,))
    return at - 1 if at and of[at - 1][1] > number else at


def common(left: Intervals, right: Intervals) -> Intervals:
    """Return the numbers in both sets."""
    few, many = sorted((left, right), key=len)
    shared: list[tuple[int, int]] = []
    for start, end in few:
        at = _touched(many, start)
        while at < len(many) and many[at][0] < end:
            shared.append((max(start, many[at][0]), min(end, many[at][1])))
            at += 1
    return tuple(shared)


def first(of: Intervals, most: int, intervals: int) -> Intervals:
    """Return the first `most` numbers, or fewer, so that they form at most `intervals` intervals."""
    taken: list[tuple[int, int]] = []
    for start, end in of[:intervals]:
        if most <= 0:
            break
        taken.append((start, min(end, start + most)))
        most -= end - start
    return tuple(taken)


def of_numbers(numbers: Iterable[int]) -> Intervals:
    """Return the set of these numbers, given in any order."""
    return union(tuple((number, number + 1) for number in numbers))


def as_ranges(runs: Iterable[tuple[int, int]]) -> str:
    """Return ranges such as `0-41,43`, of any length; both ends are included, as people write ranges."""
    return ",".join(f"{start}-{end - 1}" if end - start > 1 else f"{start}" for start, end in runs)


def numbers_of(places: Intervals) -> str:
    """Return the numbers of elements for people, who count from 1, such as `1-42,44 and 7 more`."""
    shown = places[:RANGES_SHOWN]
    more = count(places[RANGES_SHOWN:])
    return as_ranges((start + 1, end + 1) for start, end in shown) + (f" and {more} more" if more else "")


def runs_from(text: str) -> list[tuple[int, int]]:
    """Read what `as_ranges` wrote.

    Raises:
        ValueError: the text is malformed.
    """
    return [_range(run) for run in text.split(",")] if text else []


def to_text(of: Intervals) -> str:
    """Return the set as text; equal sets give equal texts."""
    text = as_ranges(of)
    if len(text) <= READABLE_CHARACTERS:
        return text
    ends = (0, *(end for _, end in of))
    gaps = [start - before for before, (start, _) in zip(ends, of, strict=False)]
    return packed([*gaps, *(end - start for start, end in of)])


def from_text(text: str, most: int | None = None) -> Intervals:
    """Read a set from its text.

    Args:
        most: limit of intervals; without one, 1,400 characters may have half a million.

    Raises:
        ValueError: the text is malformed, or has more intervals.
    """
    found = _unpacked_runs(text, most) if text.startswith("z") else runs_from(text)
    if most is not None and len(found) > most:
        raise ValueError(f"{text[:20]!r} has {len(found)} ranges, and {most} are the most")
    if any(before[1] >= after[0] for before, after in pairwise(found)):
        raise ValueError(f"{text[:20]!r} is no set of ascending ranges")
    return tuple(found)


def packed(numbers: Sequence[int]) -> str:
    """Pack non-negative numbers into a short text: `z`, then base64 of deflated varints (LEB128)."""
    raw = bytearray()
    for number in numbers:
        while number > 127:
            raw.append(number & 127 | 128)
            number >>= 7
        raw.append(number)
    return "z" + base64.b64encode(zlib.compress(bytes(raw), 9)).decode()


def unpacked(text: str, most_bytes: int = _MAX_BYTES) -> list[int]:
    """Read the numbers that `packed` wrote.

    Args:
        most_bytes: limit of the varints, which have seven bits of a number per byte.

    Raises:
        ValueError: the text is malformed, or longer.
    """
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(text[1:], validate=True), max(most_bytes, 1))  # 0: no limit
    except zlib.error as error:
        raise ValueError(f"a packed set of ranges is damaged: {error}") from error
    if not inflate.eof or (raw and raw[-1] > 127):
        raise ValueError("a packed set of ranges is torn, or too long")
    numbers, number, shift = [], 0, 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
        elif shift >= _MAX_BITS:  # the time for an endless number is quadratic
            raise ValueError("a packed set of ranges has a number that is too large")
    return numbers


def unsigned(number: int) -> int:
    """Map 0, -1, 1, -2, … to 0, 1, 2, 3, …, for `packed`."""
    return 2 * number if number >= 0 else -2 * number - 1


def signed(number: int) -> int:
    """Return the number that `unsigned` mapped to this one."""
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def _unpacked_runs(text: str, most: int | None) -> list[tuple[int, int]]:
    numbers = unpacked(text) if most is None else unpacked(text, most * _BYTES_OF_A_RUN)
    at, found = 0, []
    half = len(numbers) // 2
    if most is not None and half > most:
        raise ValueError(f"a packed set of ranges has {half}, and {most} are the most")
    for gap, length in zip(numbers[:half], numbers[half:], strict=True):
        found.append(_checked(at + gap, at + gap + length))
        at += gap + length
    return found


def _range(run: str) -> tuple[int, int]:
    if (found := _RANGE.fullmatch(run)) is None:
        raise ValueError(f"{run[:20]!r} is no range")
    return _checked(int(found[1]), int(found[2] or found[1]) + 1)


def _checked(start: int, end: int) -> tuple[int, int]:
    if not start < end <= LIMIT:
        raise ValueError(f"{start}-{end - 1} is no range of numbers below {LIMIT}")
    return start, end
