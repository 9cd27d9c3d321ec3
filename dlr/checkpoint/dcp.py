"""Conversion of a slot's contents to the types of torch.distributed.checkpoint."""

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
    """Return the metadata of a checkpoint.

    Args:
        pieces: its pieces of tensors, each once.
        leaves: names of its pickled values.
    """
    tensors: dict[str, Any] = {}
    for piece in pieces:
        if (known := tensors.get(piece.name)) is None:
            known = TensorStorageMetadata(properties(piece.dtype), torch.Size(piece.global_shape), [])
            tensors[piece.name] = known
        known.chunks.append(_chunk(piece))
    return Metadata({name: BytesStorageMetadata() for name in leaves} | tensors, planner_data=paths)


def encode_part(pieces: Iterable[Piece], results: Iterable[WriteResult], files: Iterable[File]) -> bytes:
    """Encode the pieces and files that a rank has written, as JSON, which, unlike a pickle, runs no code."""
    tensors = [(it.name, it.dtype, it.shape, it.global_shape, it.global_offset) for it in pieces]
    places = [
        (it.index.fqn, it.index.offset, info.relative_path, info.offset, info.length)
        for it in results
        for info in [it.storage_data]
    ]
    return json.dumps([tensors, places, [*map(vars, files)]]).encode()


def join_parts(
    parts: Iterable[bytes], leaves: Iterable[str], paths: dict[str, Any]
) -> tuple[Metadata, list[dict[str, Any]]]:
    """Return the metadata of a checkpoint, and the fields of each `File`.

    Args:
        parts: result of `encode_part` on each rank.

    Raises:
        ValueError, TypeError: a part is not such a result.
    """
    pieces, places, files = list[Piece](), dict[MetadataIndex, _StorageInfo](), list[dict[str, Any]]()
    for part in parts:
        tensors, of_rank, of_files = json.loads(part)
        for name, dtype, shape, whole, offset in tensors:
            pieces.append(Piece(name, dtype, tuple(shape), tuple(whole), tuple(offset), nbytes=0, sum=0))
        for name, offset, *place in of_rank:
            places[MetadataIndex(name, None if offset is None else torch.Size(offset))] = _StorageInfo(*place)
        files += of_files
    joined = metadata(pieces, leaves, paths)
    joined.storage_data = places
    return joined, files


def save_plan(pieces: Sequence[Piece], leaves: Iterable[str]) -> SavePlan:
    """Return the plan of what one rank writes."""
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
    """Return a tensor's properties by the name of its dtype; raise TypeError if torch has no such dtype."""
    if not isinstance(found := getattr(torch, dtype, None), torch.dtype):
        raise TypeError(f"torch has no type {dtype}")
    return TensorProperties(dtype=found)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.global_offset), torch.Size(piece.shape))


class SlotPlanner(DefaultSavePlanner):
    """Planner that supplies a storage writer with a slot's tensors and values.

    Args:
        tensor: returns a tensor by its name.
        leaves: pickled values by name.
    """

    def __init__(self, tensor: Callable[[str], Tensor], leaves: Mapping[str, object]) -> None:
        super().__init__()
        self._tensor, self._leaves = tensor, leaves

    def lookup_object(self, index: MetadataIndex) -> object:
        is_leaf = index.offset is None and index.fqn in self._leaves  # a tensor may have the same name
        return self._leaves[index.fqn] if is_leaf else self._tensor(index.fqn)
