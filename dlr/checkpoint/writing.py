"""torch.distributed.checkpoint's writers for savers, which sum up each file while they write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import IO, Any

from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from agent.slots.sums import WordSum
from dlr.checkpoint.files import CHUNK_BYTES
from dlr.checkpoint.storage import File


def write(
    writer: Any, plan: SavePlan, planner: SavePlanner, rank: int, world_size: int, subfolder: str
) -> tuple[list[WriteResult], list[File]]:
    """Write a rank's part of a checkpoint.

    Args:
        writer: torch's writer for files, or for object storage.
        subfolder: subfolder of the checkpoint's folder for the files.

    Returns:
        torch's results, and the files.
    """
    files: list[File] = []
    writer.set_up_storage_writer(rank == 0)
    plans = [plan if each == rank else SavePlan([]) for each in range(world_size)]
    plan = writer.prepare_global_plan(plans)[rank]
    prefix = replace(plan.storage_data, prefix=f"{subfolder}/{plan.storage_data.prefix}")
    writer.fs = _Summing(writer.fs, files)
    return writer.write_data(replace(plan, storage_data=prefix), planner).wait(), files


class _Summing:
    """A writer's file system that appends the written files to `files`."""

    def __init__(self, fs: Any, files: list[File]) -> None:
        self._fs = fs
        self._files = files

    @contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[Any]:
        """See torch's FileSystemBase."""
        with self._fs.create_stream(path, mode) as stream:
            summed = _Summed(stream)
            yield summed
        self._files.append(summed.file(PurePath(path).name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)


class _Summed:
    """A sequentially written stream that sums up its content."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._total, self._nbytes = WordSum(), 0
        self._waiting = bytearray()
        """Bytes that are not summed yet: less than CHUNK_BYTES, since sums take whole rows."""

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        self._nbytes += len(view)
        self._stream.write(view)
        while len(self._waiting) + len(view) >= CHUNK_BYTES:
            taken = CHUNK_BYTES - len(self._waiting)
            self._waiting += view[:taken]
            self._total.add_bytes(self._waiting)
            self._waiting, view = bytearray(), view[taken:]
        self._waiting += view
        return len(data)

    def file(self, name: str) -> File:
        self._total.add_bytes(self._waiting)
        return File(name, self._nbytes, self._total.total() % 2**64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
