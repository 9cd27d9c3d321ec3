"""torch.distributed.checkpoint's words for what a slot holds, and for what the ranks have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from dlr.checkpoint.plan import Piece
from dlr.checkpoint.storage import File


def metadata(pieces: Iterable[Piece], leaves: Iterable[str], paths: dict[str, Any] | None = None) -> Metadata:
    """What a checkpoint consists of.

    Args:
        pieces: each once.
        leaves: names of what is pickled.
    """
    tensors: dict[str, Any] = {}
    for piece in pieces:
        if (known := tensors.get(piece.name)) is None:
            known = TensorStorageMetadata(_properties(piece), torch.Size(piece.global_shape), [])
            tensors[piece.name] = known
        known.chunks.append(_chunk(piece))
    return Metadata({**tensors, **{name: BytesStorageMetadata() for name in leaves}}, planner_data=paths)


def save_plan(pieces: Sequence[Piece], leaves: Iterable[str]) -> SavePlan:
    """What one rank writes."""
    items = [
        WriteItem(
            MetadataIndex(piece.name, piece.global_offset),
            WriteItemType.SHARD,
            tensor_data=_tensor_data(piece),
        )
        for piece in pieces
    ]
    items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in leaves]
    return SavePlan(items)


def _tensor_data(piece: Piece) -> TensorWriteData:
    return TensorWriteData(_chunk(piece), _properties(piece), torch.Size(piece.global_shape))


def _properties(piece: Piece) -> TensorProperties:
    if not isinstance(dtype := getattr(torch, piece.dtype, None), torch.dtype):
        raise TypeError(f"torch has no type {piece.dtype}")
    return TensorProperties(dtype=dtype)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.global_offset), torch.Size(piece.shape))


def encode_part(pieces: Iterable[Piece], results: Iterable[WriteResult], files: Iterable[File]) -> bytes:
    """Encode what a rank has written, as JSON, which nobody can run."""
    tensors = [(it.name, it.dtype, it.shape, it.global_shape, it.global_offset) for it in pieces]
    places = [(it.index.fqn, it.index.offset, *vars(it.storage_data).values()) for it in results]
    return json.dumps([tensors, places, [*map(vars, files)]]).encode()


class Parts:
    """What all ranks have written.

    Args:
        parts: what `encode_part` has returned on each rank.

    Raises:
        ValueError, TypeError: one of them is something else.
    """

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._pieces: list[Piece] = []
        self._places: dict[MetadataIndex, _StorageInfo] = {}
        self.files: list[dict[str, Any]] = []
        """Fields of each `File`."""
        for part in parts:
            tensors, places, files = json.loads(part)
            self._pieces += [
                Piece(name, dtype, shape, whole, at, 0, 0) for name, dtype, shape, whole, at in tensors
            ]
            self._places |= {MetadataIndex(name, at): _StorageInfo(*info) for name, at, *info in places}
            self.files += files

    def metadata(self, leaves: Iterable[str], paths: dict[str, Any]) -> Metadata:
        """Return the content of `.metadata`."""
        whole = metadata(self._pieces, leaves, paths)
        whole.storage_data = self._places
        return whole


class SlotPlanner(DefaultSavePlanner):
    """Gives a storage writer what it asks for.

    Args:
        leaves: what is pickled, by name.
    """

    def __init__(self, tensor: Callable[[str], Tensor], leaves: Mapping[str, object]) -> None:
        super().__init__()
        self._tensor, self._leaves = tensor, leaves

    def lookup_object(self, index: MetadataIndex) -> object:
        is_leaf = index.offset is None and index.fqn in self._leaves  # a tensor may have the name of one, too
        return self._leaves[index.fqn] if is_leaf else self._tensor(index.fqn)
