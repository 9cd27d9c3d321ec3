"""Reads checkpoints in storage: those of savers, and those of torch.distributed.checkpoint without dlr.

Its import takes a second, so it is imported only when a checkpoint is loaded.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import OBJ_PATH, set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.optim import Optimizer

from agent.slots.slot import DamagedError
from dlr.checkpoint.files import Files
from dlr.checkpoint.folder_pickles import check_metadata, read_pickle
from dlr.checkpoint.modules import names_from_torch, numbered_parameters
from dlr.checkpoint.reading import Resharded
from dlr.checkpoint.state import VALUES
from dlr.checkpoint.storage import METADATA, Manifest
from dlr.checkpoint.surroundings import Surroundings
from dlr.checkpoint.values import NotAllowedError, TensorReference, write_values

_MAX_DEPTH = 100
"""Limit for the length of a path in a state."""
_MAX_EMPTY, _MAX_EMPTY_EACH = 10_000, 100
"""Limits for list items without stored content (torch stores nothing of an empty dict): in all, and for each
stored value."""


def in_storage(
    files: Files,
    manifest: Manifest,
    here: Surroundings,
    state: Mapping[str, Any],
    weights_only: bool = True,
) -> Resharded:
    """Open a complete checkpoint.

    Args:
        weights_only: as in `torch.load`.

    Raises:
        DamagedError: torch does not write such metadata.
        NotAllowedError: torch.distributed.checkpoint has written objects that `weights_only` refuses.
    """
    reader, metadata = files.reader(manifest.folder), _read_metadata(files, manifest, weights_only)
    if any(name.startswith(f"{VALUES}.") for name in metadata.state_dict_metadata):
        return Resharded(reader, metadata, here.rank, manifest.world_size == here.world_size)
    return OfTorchAlone(reader, metadata, here.rank, state, weights_only)


def _read_metadata(files: Files, manifest: Manifest, weights_only: bool) -> Metadata:
    """Read `.metadata`, which torch's own reader would unpickle without restrictions."""
    data = files.read(f"{manifest.folder}/{METADATA}")
    metadata = read_pickle(data, METADATA) if weights_only else pickle.loads(data)
    return check_metadata(metadata, manifest)


def _paths(metadata: Metadata) -> dict[str, OBJ_PATH]:
    """Return the path in the state of each stored value.

    Raises:
        DamagedError: a path is invalid or too deep, or the lists on the paths are implausibly long.
    """
    given = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
    paths = {stored: given.get(stored, (stored,)) for stored in metadata.state_dict_metadata}
    lengths: dict[OBJ_PATH, int] = {}
    for stored, path in paths.items():
        if type(path) not in (tuple, list) or not 0 < len(path) <= _MAX_DEPTH:
            raise DamagedError(f"{METADATA} has no path of {stored!r:.200}")
        if not all(type(part) is str or (type(part) is int and part >= 0) for part in path):
            raise DamagedError(f"{METADATA} has a path of {stored!r:.200} that is none")
        for depth, part in enumerate(path):
            if type(part) is int:
                lengths[tuple(path[:depth])] = max(lengths.get(tuple(path[:depth]), 0), part + 1)
    if sum(lengths.values()) > _MAX_EMPTY + _MAX_EMPTY_EACH * len(paths):
        raise DamagedError(f"{METADATA} has lists of {sum(lengths.values()):,} items for {len(paths)} things")
    return {stored: tuple(path) for stored, path in paths.items()}


class OfTorchAlone(Resharded):
    """A checkpoint that `torch.distributed.checkpoint.save` has written of a state with the same names.

    Modules and optimizers may have been saved as objects, by their `state_dict`, or by torch's
    `get_state_dict`. Such a checkpoint has no values of single ranks, such as random number generators.
    """

    def __init__(
        self,
        reader: StorageReader,
        metadata: Metadata,
        rank: int,
        state: Mapping[str, Any],
        weights_only: bool,
    ) -> None:
        paths = names_from_torch(_paths(metadata), state)
        self._names = {stored: ".".join(map(str, path)) for stored, path in paths.items()}
        super().__init__(reader, metadata, rank, same_world=False)
        leaves = self._leaves(weights_only)
        nested: dict[str, Any] = {}
        try:
            for stored, path in paths.items():
                set_element(nested, path, leaves.get(stored, TensorReference(self._names[stored])))
        except (AttributeError, IndexError, KeyError, TypeError) as error:  # a path through a leaf
            raise DamagedError(f"{METADATA} has paths that no state has: {error!s:.200}") from error
        for name, thing in state.items():
            if isinstance(thing, Optimizer) and isinstance(nested.get(name), dict):
                nested[name] = numbered_parameters(nested[name], thing, state)
        self.values = write_values(nested, {}, weights_only)

    def _name_of(self, stored: str) -> tuple[int | None, str]:
        return None, self._names[stored]

    def _read_values(self) -> None:
        """Read nothing yet: `__init__` writes the values, for which it needs the state."""
        self.values, self.rng = b"", None

    def _leaves(self, weights_only: bool) -> dict[str, Any]:
        """Load the values that are no tensors, by their names in the checkpoint."""
        described = self._metadata.state_dict_metadata
        names = [name for name, known in described.items() if not isinstance(known, TensorStorageMetadata)]
        planner = _LeafPlanner(weights_only)
        return self._load(dict.fromkeys(names), planner)


class _LeafPlanner(DefaultLoadPlanner):
    """Loads values that are no tensors without running their code, unlike torch's planner."""

    def __init__(self, weights_only: bool) -> None:
        super().__init__(flatten_state_dict=False)
        self._weights_only = weights_only

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        if zipfile.is_zipfile(value):
            with zipfile.ZipFile(value) as entries:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.infolist()):
                    raise DamagedError(f"{name} is compressed, as torch writes nothing")
        value.seek(0)
        try:
            self.state_dict[name] = torch.load(value, weights_only=self._weights_only)
        except pickle.UnpicklingError as error:
            raise NotAllowedError(
                f"{name} is of a class that may not be in a checkpoint: call "
                "torch.serialization.add_safe_globals with it before load() if you trust it, or give the "
                "Checkpointer weights_only=False if you trust everyone who can write its checkpoints"
            ) from error
