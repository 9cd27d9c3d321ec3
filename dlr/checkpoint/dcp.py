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
        item = tensor_data(piece)
        known = tensors.setdefault(piece.name, TensorStorageMetadata(item.properties, item.size, []))
        known.chunks.append(item.chunk)
    return Metadata({**tensors, **{name: BytesStorageMetadata() for name in leaves}}, planner_data=paths)


def save_plan(pieces: Sequence[Piece], leaves: Iterable[str]) -> SavePlan:
    """What one rank writes."""
    items = [
        WriteItem(
            MetadataIndex(piece.name, piece.global_offset),
            WriteItemType.SHARD,
            tensor_data=tensor_data(piece),
        )
        for piece in pieces
    ]
    items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in leaves]
    return SavePlan(items)


def tensor_data(piece: Piece) -> TensorWriteData:
    """What a piece is of its tensor."""
    return TensorWriteData(
        ChunkStorageMetadata(torch.Size(piece.global_offset), torch.Size(piece.shape)),
        TensorProperties(dtype=getattr(torch, piece.dtype)),
        torch.Size(piece.global_shape),
    )


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
