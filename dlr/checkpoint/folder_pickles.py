"""The pickles in a checkpoint's folder, read without running the code of those who wrote them.

These are torch's `.metadata` and the savers' parts of it. Nothing is called or made but what torch and the
savers write there.
"""

from __future__ import annotations

import io
import pathlib
import pickle
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.storage import WriteResult

from agent.slots.slot import DamagedError
from dlr.checkpoint.storage import File

_CLASSES = (
    *(it for it in vars(described).values() if isinstance(it, type) and it.__module__ == described.__name__),
    filesystem._StorageInfo,
    File,
    WriteResult,
    torch.Size,
)
_PATHS = (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath)
_NAMED: dict[tuple[str, str], Any] = {
    **{(it.__module__, it.__qualname__): it for it in _CLASSES},
    **{(module, it.__name__): it for module in ("pathlib", "pathlib._local") for it in _PATHS},
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, also: Collection[type]) -> None:
        super().__init__(io.BytesIO(data))
        self._also = {(it.__module__, it.__qualname__): it for it in also}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        named = _NAMED.get((module, name)) or self._also.get((module, name))
        if named is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which does not belong there")
        return named


def read_pickle(data: bytes, name: str, also: Collection[type] = ()) -> Any:
    """Read one.

    Args:
        name: of the file, for the error.
        also: classes that a writer of the user's own puts there.

    Raises:
        DamagedError: it is not what torch and the savers write.
    """
    try:
        return _Unpickler(data, also).load()
    except Exception as error:  # what is no pickle may raise anything
        raise DamagedError(f"{name} cannot be read: {error!s:.300}") from error
