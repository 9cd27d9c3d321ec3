"""What lies where in a slot (`agent.memory.slot`): its tensors, and the header that describes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

CONTROL_BYTES = 4096
"""Of the control words, and what is kept free behind them: here the tensors begin."""
ALIGNMENT = 64
WORD_BYTES = 8


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
    """As torch names it, without `torch.`."""
    shape: tuple[int, ...]
    offset: int
    """From the beginning of the slot, in bytes."""
    nbytes: int
    global_shape: tuple[int, ...] | None = None
    """Of the DTensor that this is a rank's part of; None for a plain tensor."""
    global_offset: tuple[int, ...] | None = None
    """Where in it this part begins."""
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
        """Where the tensors end, in bytes: here the header begins."""
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
        """Read it.

        Raises:
            ValueError, TypeError: this is no header.
        """
        return cls(tuple(_entry(**fields) for fields in json.loads(data)))


def lay_out(parts: Iterable[Part]) -> Header:
    """Give each tensor its place, in the order that they come in."""
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
    return Header(tuple(entries))


def _entry(**fields: object) -> Entry:
    entry = Entry(**fields)  # type: ignore[arg-type]
    shapes = [None if shape is None else tuple(shape) for shape in (entry.global_shape, entry.global_offset)]
    return replace(entry, shape=tuple(entry.shape), global_shape=shapes[0], global_offset=shapes[1])


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
