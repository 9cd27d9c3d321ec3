"""A writer and a reader of a user's own, which know no files: a pickle for each tensor, below a folder."""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future


@dataclass(frozen=True)
class Drawer:
    """Where something was put."""

    name: str


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Cupboard(StorageWriter, StorageReader):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._step = Path(checkpoint_id or "").name

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._place("").mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for item in plan.items:
            data: Any = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                data = data.getvalue()
            drawer = Drawer(f"{item.index.fqn}-{'-'.join(map(str, item.index.offset or ()))}")
            torch.save(data, self._place(drawer.name))
            results.append(WriteResult(item.index, 1, drawer))
        return done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {each.index: each.storage_data for of_rank in results for each in of_rank}
        self._place("index").write_bytes(pickle.dumps(metadata))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata: Metadata = pickle.loads(self._place("index").read_bytes())
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._drawers: dict[MetadataIndex, Drawer] = metadata.storage_data

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            data = torch.load(self._place(self._drawers[item.storage_index].name))
            if isinstance(data, bytes):
                planner.load_bytes(item, io.BytesIO(data))
                continue
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                data = data.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(data)
            planner.commit_tensor(item, target)
        return done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def _place(self, name: str) -> Path:
        return self._folder / self._step / name
