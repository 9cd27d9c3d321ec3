"""The pickles in a checkpoint's folder, read without running the code of those who wrote them.

These are torch's `.metadata` and the savers' parts of it. Nothing is called or made but what torch and the
savers write there.
"""

from __future__ import annotations

import io
import pathlib
import pickle
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
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if (module, name) not in _NAMED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which does not belong there")
        return _NAMED[module, name]


def read_pickle(data: bytes, name: str) -> Any:
    """Read one.

    Args:
        name: of the file, for the error.

    Raises:
        DamagedError: it is not what torch and the savers write.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # what is no pickle may raise anything
        raise DamagedError(f"{name} cannot be read: {error!s:.300}") from error
