"""Layout of a slot.

0     control: eight int64 (`ControlWord`), the commit word among them
4096  tensors, each at a multiple of 64 bytes
…     the header: JSON, which describes the tensors
…     the sums: an int64 of each tensor, and one of the header and the control words
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

MAGIC = 0x31_54_4F_4C_53_52_4C_44
"""`DLRSLOT1`, in little-endian order."""
CONTROL_BYTES = 4096
"""Bytes of the control words and of the free space behind them; the tensors begin here."""
ALIGNMENT = 64
WORD_BYTES = 8
MAX_HEADER_BYTES = 64 << 20
"""Enough for 250,000 tensors, which only the largest models have on one rank."""
MAX_DIMENSIONS = 64
"""torch's limit."""
MAX_NUMBER = 2**62
"""Limit of sizes and offsets, so that the sum of two fits into an int64."""


class ControlWord(IntEnum):
    """The control words, in order."""

    MAGIC = 0
    COMMIT = 1
    STEP = 2
    ROUND = 3
    RANK = 4
    WORLD_SIZE = 5
    HEADER_OFFSET = 6
    HEADER_BYTES = 7


class CommitWord(IntEnum):
    """The commit word."""

    OPEN = 0
    """The slot is empty, or being written."""
    WHOLE = 1
    """The checkpoint is complete, but without sums."""
    SUMMED = 2
    """The checkpoint is complete, with its sums."""
    DAMAGED = 3
    """A sum differed at a read, so that the slot is not used any more."""


@dataclass(frozen=True, order=True)
class Mark:
    """Mark of the checkpoint in a slot. Slots of all ranks with the same round and step are one checkpoint.

    They are ordered by age: a later round is newer, even if it resumed from a lower step.
    """

    round: int
    """Round in which it was written."""
    step: int
    rank: int
    world_size: int


def newest_by_rank(marks: Iterable[Mark]) -> dict[int, Mark]:
    """Return each rank's newest mark."""
    return {mark.rank: mark for mark in sorted(marks)}


@dataclass(frozen=True)
class TensorPart:
    """A tensor, or a rank's part of one."""

    name: str
    dtype: str
    """Name of the type in torch, without `torch.`."""
    shape: tuple[int, ...]
    nbytes: int
    global_shape: tuple[int, ...] | None = None
    """Shape of the DTensor that this is a rank's part of; None for a plain tensor."""
    global_offset: tuple[int, ...] | None = None
    """Offset of this part in the DTensor, by dimension."""
    is_buffer: bool = False
    """Whether it is a buffer of a module."""


@dataclass(frozen=True)
class Entry(TensorPart):
    """A tensor of a slot."""

    offset: int = CONTROL_BYTES
    """Offset from the beginning of the slot, in bytes."""


@dataclass(frozen=True)
class Header:
    """The tensors of a slot, and their places."""

    entries: tuple[Entry, ...]

    @cached_property
    def end(self) -> int:
        """End of the tensors, in bytes; the header begins here."""
        return max((entry.offset + padded(entry.nbytes) for entry in self.entries), default=CONTROL_BYTES)

    @property
    def slot_bytes(self) -> int:
        """Least size of a slot for these tensors, in bytes."""
        return self.end + padded(len(self.encoded)) + padded(WORD_BYTES * (len(self.entries) + 1))

    @cached_property
    def encoded(self) -> bytes:
        return json.dumps([vars(entry) for entry in self.entries], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Decode a header, which may have come over a network.

        Raises:
            ValueError: it is not a header as `encoded` and `lay_out` make it.
        """
        if len(data) > MAX_HEADER_BYTES:
            raise ValueError(f"{len(data):,} bytes are more than a header has")
        try:
            listed = json.loads(data)
        except RecursionError as error:
            raise ValueError("too deep") from error
        if not isinstance(listed, list):
            raise ValueError("it is no list")
        header = cls(tuple(_entry(fields) for fields in listed))
        offset = CONTROL_BYTES
        for entry in header.entries:
            if entry.offset != offset:
                raise ValueError(f"{entry.name:.99} begins at {entry.offset}, not at {offset}")
            offset += padded(entry.nbytes)
        if len({entry.name for entry in header.entries}) < len(header.entries):
            raise ValueError("a name is there twice")
        if header.encoded != data:
            raise ValueError("it is written otherwise")
        return header


def lay_out(parts: Iterable[TensorPart]) -> Header:
    """Assign each tensor its place, in the given order.

    Raises:
        ValueError: there are too many tensors.
    """
    entries, offset = [], CONTROL_BYTES
    for part in parts:
        entries.append(Entry(**vars(part), offset=offset))
        offset += padded(part.nbytes)
    header = Header(tuple(entries))
    if len(header.encoded) > MAX_HEADER_BYTES:
        raise ValueError(
            f"{len(entries):,} tensors take {len(header.encoded):,} bytes to describe, which is too much"
        )
    return header


def header_offset(control: bytes | bytearray) -> int:
    """Return the offset of the header, from the first `CONTROL_BYTES` of a slot."""
    return int(struct.unpack_from("q", control, WORD_BYTES * ControlWord.HEADER_OFFSET)[0])


_FIELDS = Entry.__dataclass_fields__.keys()


def _entry(listed: Any) -> Entry:
    """Decode one entry; raise ValueError if it is malformed."""
    if not isinstance(listed, dict) or listed.keys() != _FIELDS:
        raise ValueError("an entry has other fields")
    name, dtype, shape, nbytes, whole, start, is_buffer, offset = (listed[field] for field in _FIELDS)
    if not (type(name) is type(dtype) is str and type(is_buffer) is bool):
        raise ValueError("a name, dtype or is_buffer is malformed")
    is_part = whole is not None or start is not None
    for numbers in (shape, [offset, nbytes], *((whole, start) if is_part else ())):
        if not _are_sizes(numbers):
            raise ValueError(f"{name:.99} has a malformed shape or number")
    if not is_part:
        return Entry(name, dtype, tuple(shape), nbytes, None, None, is_buffer, offset)
    if not len(shape) == len(whole) == len(start):
        raise ValueError(f"{name:.99} has not as many dimensions as its tensor")
    ends = [first + size for first, size in zip(start, shape, strict=True)]
    if 0 not in shape and any(end > size for end, size in zip(ends, whole, strict=True)):
        raise ValueError(f"{name:.99} is not within its tensor")
    return Entry(name, dtype, tuple(shape), nbytes, tuple(whole), tuple(start), is_buffer, offset)


def _are_sizes(numbers: Any) -> bool:
    return (
        type(numbers) is list
        and len(numbers) <= MAX_DIMENSIONS
        and all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers)
    )


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
