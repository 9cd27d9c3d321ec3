"""torch's `.metadata`, joined from what each rank has pickled, of which rank 0 unpickles nothing.

A pickle is a program that puts objects on a stack, and into numbered places of a memo, to refer to them
later. All programs here begin with the same memo, of classes and of names of fields (`_PREFIX`), and one that
follows another may use the places behind these again. So they are joined by their bytes. It takes protocol 2:
later ones do not write the number of a place.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from dlr.checkpoint.dcp import tensor_data
from dlr.checkpoint.plan import Piece

_PROTOCOL = 2
_HEADER = b"\x80\x02"
_EMPTY = 3
"""Bytes of an empty list or dict, and of its place in the memo; what fills it comes behind them."""
_END_OF_TENSOR = b"ub"
"""The end of a TensorStorageMetadata, whose last field is the list of its chunks."""
_CLASSES = (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
    _StorageInfo,
)
_COMMON = (
    *_CLASSES,
    torch.Size,
    *dict.fromkeys(sys.intern(field.name) for each in _CLASSES for field in fields(each)),
)


class _Pickler(pickle.Pickler):
    """Writes an outline, in whose place of each `_Gap` something is to be put."""

    def persistent_id(self, value: Any) -> str | None:
        return value.mark if isinstance(value, _Gap) else None


@dataclass(frozen=True, eq=False)
class _Gap:
    mark: str

    @property
    def program(self) -> bytes:
        """Its program in a pickle without a memo."""
        text = self.mark.encode()
        return b"X" + len(text).to_bytes(4, "little") + text + b"Q"


_TENSORS, _STORAGE = _Gap("\0dlr tensors\0"), _Gap("\0dlr storage\0")

_primed = pickle.Pickler(_buffer := io.BytesIO(), _PROTOCOL)
_primed.dump(_COMMON)
_PREFIX = _buffer.getvalue()[:-1] + pickle.POP


def _program(value: object) -> bytes:
    """The program that puts a value on the stack, behind `_PREFIX`."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, _PROTOCOL)
    pickler.memo = _primed.memo
    pickler.dump(value)
    return buffer.getvalue()[len(_HEADER) : -1]


@dataclass(frozen=True)
class RankPart:
    """What a rank has written, for `.metadata`."""

    tensors: Sequence[tuple[str, bytes, bytes]]
    """Each tensor's name, the program of name and tensor up to its chunks, and the chunk's program."""
    storage: bytes
    """Program that fills a dict with the places of what the rank has written."""


def part_of(pieces: Iterable[Piece], results: Iterable[WriteResult]) -> RankPart:
    """Return the part of a rank."""
    tensors = []
    for piece in pieces:
        data = tensor_data(piece)
        tensor = _program(TensorStorageMetadata(data.properties, data.size, []))
        assert tensor.endswith(_END_OF_TENSOR)
        chunk = _program([data.chunk])[_EMPTY:]
        tensors.append((piece.name, _program(piece.name) + tensor.removesuffix(_END_OF_TENSOR), chunk))
    return RankPart(tensors, _program({each.index: each.storage_data for each in results})[_EMPTY:])


class Joined:
    """The parts of all ranks."""

    def __init__(self) -> None:
        self._tensors: dict[str, list[bytes]] = {}
        self._storage: list[bytes] = []

    def add(self, part: RankPart) -> None:
        tensors = self._tensors
        for name, tensor, chunk in part.tensors:
            known = tensors.get(name)
            if known is None:
                tensors[name] = [tensor, chunk]
            else:
                known.append(chunk)
        self._storage.append(part.storage)

    def encode(self, metadata: Metadata) -> bytes:
        """Return what `.metadata` is to hold.

        Args:
            metadata: without tensors.
        """
        others = _program(metadata.state_dict_metadata)
        outlined: Any = metadata
        outlined.state_dict_metadata, outlined.storage_data = _TENSORS, _STORAGE
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, _PROTOCOL)
        pickler.fast = True  # without places in the memo, which the parts may use
        pickler.dump(metadata)
        outline = buffer.getvalue()[len(_HEADER) :]
        before, behind = outline.split(_TENSORS.program)
        between, after = behind.split(_STORAGE.program)
        programs = [_PREFIX, before, others]
        for tensor in self._tensors.values():
            programs += [*tensor, _END_OF_TENSOR, pickle.SETITEM]
        programs += [between, pickle.EMPTY_DICT, *self._storage, after]
        return b"".join(programs)
