"""torch.distributed.checkpoint's words for what a slot holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from dlr.checkpoint.plan import Piece


def metadata(pieces: Iterable[Piece], leaves: Iterable[str], paths: dict[str, Any] | None = None) -> Metadata:
    """What a checkpoint consists of.

    Args:
        pieces: each once.
        leaves: names of what is pickled.
    """
    tensors: dict[str, Any] = {}
    for piece in pieces:
        if (known := tensors.get(piece.name)) is None:
            known = TensorStorageMetadata(properties(piece.dtype), torch.Size(piece.global_shape), [])
            tensors[piece.name] = known
        known.chunks.append(_chunk(piece))
    return Metadata({name: BytesStorageMetadata() for name in leaves} | tensors, planner_data=paths)


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
    return TensorWriteData(_chunk(piece), properties(piece.dtype), torch.Size(piece.global_shape))


def properties(dtype: str) -> TensorProperties:
    """Return a tensor's properties by the name of its type; raise TypeError where torch has no such type."""
    if not isinstance(found := getattr(torch, dtype, None), torch.dtype):
        raise TypeError(f"torch has no type {dtype}")
    return TensorProperties(dtype=found)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.global_offset), torch.Size(piece.shape))


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
