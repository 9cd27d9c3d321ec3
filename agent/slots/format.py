"""What lies where in a slot (`agent.slots.slot`): its tensors, and the header that describes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

CONTROL_BYTES = 4096
"""Of the control words, and what is kept free behind them: here the tensors begin."""
ALIGNMENT = 64
WORD_BYTES = 8
MAX_HEADER_BYTES = 64 << 20
"""Enough for 250,000 tensors, as none but the largest models have on one rank."""
MAX_DIMENSIONS = 64
"""As many as torch takes."""
MAX_NUMBER = 2**62
"""So that no sum of two is beyond an int64."""


@dataclass(frozen=True)
class Part:
    """A tensor to be laid out; the fields are those of `Entry`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    global_shape: tuple[int, ...] | None = None
    global_offset: tuple[int, ...] | None = None
    is_buffer: bool = False


@dataclass(frozen=True)
class Entry:
    """One tensor of a slot."""

    name: str
    dtype: str
    """Name of the type in torch, without `torch.`."""
    shape: tuple[int, ...]
    offset: int
    """Distance from the beginning of the slot, in bytes."""
    nbytes: int
    global_shape: tuple[int, ...] | None = None
    """Shape of the DTensor that this is a rank's part of; None for a plain tensor."""
    global_offset: tuple[int, ...] | None = None
    """Place in it at which this part begins."""
    is_buffer: bool = False
    """Whether it is a buffer of a module."""


@dataclass(frozen=True)
class Header:
    """What a slot's tensors are, and where."""

    entries: tuple[Entry, ...]

    @property
    def layout(self) -> str:
        """The same for states of the same names, types and shapes: 16 hexadecimal digits."""
        return hashlib.sha256(self.encoded).hexdigest()[:16]

    @cached_property
    def end(self) -> int:
        """End of the tensors, in bytes: here the header begins."""
        return max((entry.offset + padded(entry.nbytes) for entry in self.entries), default=CONTROL_BYTES)

    @property
    def slot_bytes(self) -> int:
        """How large a slot must be for it."""
        return self.end + padded(len(self.encoded)) + padded(WORD_BYTES * (len(self.entries) + 1))

    @cached_property
    def encoded(self) -> bytes:
        return json.dumps([vars(entry) for entry in self.entries], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Read what may have come over a network.

        Raises:
            ValueError: this is no header as `encoded` and `lay_out` make it.
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


def lay_out(parts: Iterable[Part]) -> Header:
    """Give each tensor its place, in the order that they come in.

    Raises:
        ValueError: there are too many.
    """
    entries, offset = [], CONTROL_BYTES
    for part in parts:
        entries.append(
            Entry(
                part.name,
                part.dtype,
                part.shape,
                offset,
                part.nbytes,
                part.global_shape,
                part.global_offset,
                part.is_buffer,
            )
        )
        offset += padded(part.nbytes)
    header = Header(tuple(entries))
    if len(header.encoded) > MAX_HEADER_BYTES:
        raise ValueError(
            f"{len(entries):,} tensors take {len(header.encoded):,} bytes to describe, which is too much"
        )
    return header


def _entry(fields: Any) -> Entry:
    """Read one entry.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(fields, dict) or fields.keys() != Entry.__dataclass_fields__.keys():
        raise ValueError("an entry has other fields")
    name, dtype, shape, offset, nbytes, global_shape, global_offset, is_buffer = (
        fields[field] for field in Entry.__dataclass_fields__
    )
    if not (type(name) is type(dtype) is str and type(is_buffer) is bool):
        raise ValueError("a name, dtype or is_buffer is none")
    is_part = global_shape is not None or global_offset is not None
    for numbers in (shape, [offset, nbytes], *((global_shape, global_offset) if is_part else ())):
        if not _are_sizes(numbers):
            raise ValueError(f"{name:.99} has a shape or a number that is none")
    if not is_part:
        return Entry(name, dtype, tuple(shape), offset, nbytes, None, None, is_buffer)
    if not len(shape) == len(global_shape) == len(global_offset):
        raise ValueError(f"{name:.99} has not as many dimensions as its tensor")
    ends = [start + size for start, size in zip(global_offset, shape, strict=True)]
    if 0 not in shape and any(end > size for end, size in zip(ends, global_shape, strict=True)):
        raise ValueError(f"{name:.99} is not within its tensor")
    return Entry(
        name, dtype, tuple(shape), offset, nbytes, tuple(global_shape), tuple(global_offset), is_buffer
    )


def _are_sizes(numbers: Any) -> bool:
    return (
        type(numbers) is list
        and len(numbers) <= MAX_DIMENSIONS
        and all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers)
    )


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
