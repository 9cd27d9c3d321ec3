"""Sets of indices as text: `0-41,43-9998`. So a status says who trains without a word for each worker.

A set that is too scattered for that is packed, as whichever is shorter: `g`, then its gaps in Golomb's code,
in base 85; or `z`, then a bitmap, deflated, in base64. So any set whatever of 10,000 slots has at most 1,700
characters, and 100 of them by chance have 130, which is 4 % more than the entropy of the choice.

Controller and agents share this module, so it imports the standard library alone and runs on Python 3.10.
"""

from __future__ import annotations

import base64
import operator
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count, islice

MAX_INDEX = 99_999
MAX_CHARACTERS = 17_000
"""Of any set of indices up to MAX_INDEX, packed."""
READABLE_CHARACTERS = 256
"""Longer ranges are packed."""
PATTERN = r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*|z[A-Za-z0-9+/]+=*|g[!#-%(-;=?-Z^-~]+)?$"

OTHERS = "*"
"""In `grouped`: the members that no other incarnation names."""

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_GAPS, _BITMAP = "g", "z"
_FROM_RFC_1924 = bytes.maketrans(b"&<>", b",./")
_TO_RFC_1924 = bytes.maketrans(b",./", b"&<>")
"""Go's JSON writes each of these three in six bytes. https://pkg.go.dev/encoding/json#HTMLEscape"""
_LONGEST_UNARY = 16
"""A greater quotient of a gap would take more bits than the gap itself."""
_MOST_LOW_BITS = 15
_INDEX_BITS = (MAX_INDEX + 1).bit_length()
_RAW = -zlib.MAX_WBITS
"""Deflated without a header."""
_MAX_BYTES = MAX_INDEX // 8 + 1
_BITS = bytes.maketrans(b"01", b"\x00\x01")


def to_text(indices: Sequence[int]) -> str:
    """The set as text, the same for the same set.

    Args:
        indices: ascending.
    """
    ranges = as_ranges(indices)
    return ranges if len(ranges) <= READABLE_CHARACTERS else _packed(indices)


def from_text(text: str) -> list[int]:
    """The indices, ascending.

    Raises:
        ValueError: it is no such text, or has an index above MAX_INDEX.
    """
    if text.startswith(_GAPS):
        indices = _of_gaps(text[1:])
    elif text.startswith(_BITMAP):
        indices = _of_bitmap(text[1:])
    else:
        indices = _of_ranges(text)
    check(indices)
    return indices


def check(indices: Sequence[int]) -> None:
    """
    Raises:
        ValueError: they are not ascending, or not from 0 to MAX_INDEX.
    """
    if indices and not (indices[0] >= 0 and indices[-1] <= MAX_INDEX):
        raise ValueError(f"indices are from 0 to {MAX_INDEX}")
    if not all(map(operator.lt, indices, islice(indices, 1, None))):
        raise ValueError("indices must ascend")


def as_ranges(indices: Iterable[int]) -> str:
    """Such as `0-3,6`, however long.

    Args:
        indices: ascending.
    """
    found = list(indices)
    if not found:
        return ""
    # Where a run ends: whatever takes one turn for each of 10,000 indices does so in C.
    steps = map(operator.sub, islice(found, 1, None), found)
    ends = [*compress(count(), map((1).__ne__, steps)), len(found) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    runs = ((found[start], found[end]) for start, end in zip(starts, ends, strict=True))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def grouped(members: Sequence[int], incarnations: Sequence[int]) -> dict[str, str]:
    """The incarnations of a world's members: who has which, but for those of incarnation 1.

    Args:
        members: indices, ascending.
        incarnations: theirs, in the same order.
    """
    counts = Counter(incarnations)
    if not counts.keys() - {1}:
        return {}
    most = max(counts, key=lambda incarnation: (counts[incarnation], -incarnation))
    of_each: dict[int, list[int]] = {}
    for index, incarnation in zip(members, incarnations, strict=True):
        if incarnation != most:
            of_each.setdefault(incarnation, []).append(index)
    if most == 1:
        return {str(incarnation): to_text(of_each[incarnation]) for incarnation in sorted(of_each)}
    groups = {str(incarnation): to_text(of_each[incarnation]) for incarnation in sorted(of_each)}
    return groups | {str(most): OTHERS}


def incarnations_of(members: Sequence[int], groups: Mapping[str, str]) -> list[int]:
    """The incarnation of each member, as `grouped` wrote them.

    Raises:
        ValueError: no such text.
    """
    others = next((int(incarnation) for incarnation, text in groups.items() if text == OTHERS), 1)
    listed = {
        index: int(incarnation)
        for incarnation, text in groups.items()
        if text != OTHERS
        for index in from_text(text)
    }
    return [listed.get(index, others) for index in members]


def _of_ranges(text: str) -> list[int]:
    indices: list[int] = []
    for run in text.split(",") if text else ():
        if (found := _RANGE.fullmatch(run)) is None:
            raise ValueError(f"{run[:20]!r} is no range of indices")
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last <= MAX_INDEX:
            raise ValueError(f"{run} is no range of indices from 0 to {MAX_INDEX}")
        indices.extend(range(first, last + 1))
    return indices


def _packed(indices: Sequence[int]) -> str:
    by_gaps = _GAPS + _as_gaps(indices)
    by_bitmap = _BITMAP + _as_bitmap(indices)
    return min(by_gaps, by_bitmap, key=len)


def _as_gaps(indices: Sequence[int]) -> str:
    """The gaps before each index, in Golomb's code with a power of two, after Rice.

    The first bit says that those are told instead which are not in the set, up to the first after its last.
    Four bits say how many low bits of each gap are written as they are, behind the rest in unary. A gap whose
    rest is long is written whole. The best power costs 3 % more than the entropy of a set by chance.
    https://en.wikipedia.org/wiki/Golomb_coding#Rice_coding
    """
    end = indices[-1] + 1
    is_dense = len(indices) > end // 2
    written = [*sorted({*range(end)}.difference(indices)), end] if is_dense else indices
    gaps = [written[0], *(step - 1 for step in map(operator.sub, islice(written, 1, None), written))]
    counts = Counter(gaps)
    guess = min((sum(gaps) // len(gaps)).bit_length(), _MOST_LOW_BITS)
    low = min(range(max(guess - 2, 0), guess + 1), key=lambda bits: _size(counts, bits))
    codes = {gap: _code(gap, low) for gap in counts}
    text = f"{is_dense:b}{low:04b}" + "".join(map(codes.__getitem__, gaps))
    # What is left of the last byte is ones: no gap ends with as few.
    text += "1" * (-len(text) % 8)
    packed = int(text, 2).to_bytes(len(text) // 8, "big")
    return base64.b85encode(packed).translate(_FROM_RFC_1924).decode()


def _size(counts: Mapping[int, int], low: int) -> int:
    return sum(count * len(_code(gap, low)) for gap, count in counts.items())


def _code(gap: int, low: int) -> str:
    quotient = gap >> low
    if quotient >= _LONGEST_UNARY:
        return "1" * _LONGEST_UNARY + f"{gap:0{_INDEX_BITS}b}"
    rest = f"{gap & (1 << low) - 1:0{low}b}" if low else ""
    return "1" * quotient + "0" + rest


def _of_gaps(text: str) -> list[int]:
    packed = base64.b85decode(text.encode().translate(_TO_RFC_1924))
    bits = f"{int.from_bytes(packed, 'big'):0{8 * len(packed)}b}"
    low, at = int(bits[1:5] or "0", 2), 5
    gap = re.compile(
        rf"(1{{0,{_LONGEST_UNARY - 1}}})0([01]{{{low}}})|1{{{_LONGEST_UNARY}}}([01]{{{_INDEX_BITS}}})"
    )
    written, last = [], -1
    while (found := gap.match(bits, at)) is not None:
        unary, rest, whole = found.groups()
        last += 1 + (int(whole, 2) if whole else len(unary) << low | int(rest or "0", 2))
        written.append(last)
        at = found.end()
    if not written or last > MAX_INDEX + 1 or "0" in bits[at:] or len(bits) - at >= 8:
        raise ValueError(f"a packed set of indices is torn, or has one above {MAX_INDEX}")
    return sorted({*range(last)}.difference(written)) if bits[0] == "1" else written


def _as_bitmap(indices: Sequence[int]) -> str:
    bitmap = bytearray(indices[-1] // 8 + 1)
    for index in indices:
        bitmap[index >> 3] |= 1 << (index & 7)
    # Runs of equal bytes and Huffman's code: a longer search takes 50 ms, and finds nothing more.
    deflate = zlib.compressobj(9, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(deflate.compress(bytes(bitmap)) + deflate.flush()).decode()


def _of_bitmap(text: str) -> list[int]:
    inflate = zlib.decompressobj(_RAW)
    try:
        bitmap = inflate.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"a packed set of indices is damaged: {error}") from error
    if not inflate.eof:
        raise ValueError(f"a packed set of indices is torn, or has one above {MAX_INDEX}")
    bits = f"{int.from_bytes(bitmap, 'little'):b}".encode().translate(_BITS)
    return list(compress(count(), reversed(bits)))
