"""Safe reading of torch's `.metadata`, the pickle in a checkpoint's folder.

The unpickler has an allow-list (`dlr.checkpoint.unpickling`): it calls and creates only what torch writes
there, so that a foreign checkpoint runs no code.
"""

from __future__ import annotations

import math
import pathlib
import pickle
from collections import Counter
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as described

from agent.slots.slot import DamagedError
from dlr.checkpoint.storage import METADATA, Manifest
from dlr.checkpoint.unpickling import RestrictedUnpickler

_PATHS = (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath)
_WRITTEN = (
    filesystem._StorageInfo,
    described.BytesStorageMetadata,
    described.ChunkStorageMetadata,
    described.Metadata,
    described.MetadataIndex,
    described.StorageMeta,
    described.TensorProperties,
    described.TensorStorageMetadata,
    described._MEM_FORMAT_ENCODING,
    torch.Size,
    torch.serialization._get_layout,
)
_NAMED: dict[str, Any] = {
    **{f"{module}.{it.__name__}": it for module in ("pathlib", "pathlib._local") for it in _PATHS},
    **{f"{it.__module__}.{it.__qualname__}": it for it in _WRITTEN},
}
"""Classes and functions that a pickle may name, by path."""
_MAX_COMPRESSION = 1_000
"""Highest plausible compression ratio of torch's own transformations."""


class _FolderUnpickler(RestrictedUnpickler):
    def named(self, path: str) -> Any:
        module, _, name = path.rpartition(".")
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if path not in _NAMED:
            raise pickle.UnpicklingError(f"it names {path:.200}, which does not belong there")
        return _NAMED[path]


def read_pickle(data: bytes, name: str) -> Any:
    """Unpickle a `.metadata` file.

    Args:
        name: name of the file, for the error.

    Raises:
        DamagedError: torch does not write such a pickle.
    """
    try:
        return _FolderUnpickler(data).load()
    except Exception as error:  # invalid pickles may raise anything
        raise DamagedError(f"{name} cannot be read: {error!s:.300}") from error


# --- Contents of `.metadata` ----------------------------------------------------------------------------


def check_metadata(metadata: object, manifest: Manifest) -> described.Metadata:
    """Make sure that all files and sizes that the metadata name are in the checkpoint's folder.

    Args:
        manifest: manifest of the checkpoint; without files if torch wrote it without dlr.

    Raises:
        DamagedError: these are no metadata, or they name files elsewhere or tensors larger than their files.
    """
    if not isinstance(metadata, described.Metadata):
        raise DamagedError(f"{METADATA} is a {type(metadata).__name__}")
    written = [manifest.place_of(file) for file in manifest.files if file.name != METADATA]
    files = {place.removeprefix(f"{manifest.folder}/") for place in written}
    try:
        _check_tensors(metadata, _check_places(metadata, files))
    except (AttributeError, TypeError) as error:  # an object without its fields, say
        raise DamagedError(f"{METADATA} is not what torch writes: {error!s:.200}") from error
    return metadata


def _check_places(metadata: described.Metadata, files: set[str]) -> Counter[str]:
    """Return the number of bytes in files, by tensor."""
    stored: Counter[str] = Counter()
    is_listed = bool(files)
    for index, info in (metadata.storage_data or {}).items():
        place, limits = info.relative_path, (info.offset, info.length)
        if not all(type(number) is int and number >= 0 for number in limits):
            raise DamagedError(f"{METADATA} has a place in a file that is none")
        if place not in files:
            if is_listed or not _is_below(place):
                raise DamagedError(f"{METADATA} names {place!r:.200}, which is no file of the checkpoint")
            files.add(place)
        is_transformed = bool(getattr(info, "transform_descriptors", None))
        stored[index.fqn] += info.length * (_MAX_COMPRESSION if is_transformed else 1)
    return stored


def _check_tensors(metadata: described.Metadata, stored: Counter[str]) -> None:
    for name, known in metadata.state_dict_metadata.items():
        if type(name) is not str:
            raise DamagedError(f"{METADATA} has a tensor without a name")
        if not isinstance(known, described.TensorStorageMetadata):
            continue
        dtype = known.properties.dtype
        if not (isinstance(dtype, torch.dtype) and _is_size(known.size)):
            raise DamagedError(f"{METADATA} does not describe {name!r:.200}")
        if not all(_is_chunk(chunk, len(known.size)) for chunk in known.chunks):
            raise DamagedError(f"{METADATA} has a part of {name!r:.200} that is none")
        nbytes = math.prod(known.size) * dtype.itemsize
        if nbytes > stored[name]:
            raise DamagedError(
                f"{METADATA} has {name!r:.200} of {nbytes:,} bytes, of which {stored[name]:,} are in files"
            )


def _is_below(place: Any) -> bool:
    """Whether that is a relative path which stays within its folder."""
    if type(place) is not str or "\0" in place or "\\" in place or "://" in place:
        return False
    path = PurePosixPath(place)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _is_size(size: Any) -> bool:
    return isinstance(size, torch.Size) and all(type(length) is int and length >= 0 for length in size)


def _is_chunk(chunk: Any, dimensions: int) -> bool:
    sizes = (chunk.offsets, chunk.sizes)
    return all(_is_size(size) and len(size) == dimensions for size in sizes)
