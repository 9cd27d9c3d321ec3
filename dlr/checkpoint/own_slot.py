"""Reads the checkpoint in memory that this rank wrote itself.

Each tensor is verified while it is copied, in one pass. Half of the time goes into page faults of the new
process, whose pages the kernel clears first; so several threads fill tensors if there are enough cores.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from agent.slots.format import CommitWord, Entry, Mark, TensorPart
from agent.slots.slot import DamagedError, Slot
from dlr.checkpoint.modules import MismatchError
from dlr.checkpoint.state import RNG, VALUES
from dlr.checkpoint.tensors import local_tensor

MAX_THREADS = 4
"""Most threads that load; more would only compete for memory bandwidth."""


class CheckpointSource(Protocol):
    """A whole checkpoint, as one rank sees it."""

    parts: list[TensorPart]
    """Tensors of the checkpoint."""
    values: bytes
    rng: bytes | None

    def fill(self, targets: dict[str, Tensor]) -> None:
        """Copy the checkpoint's tensors into the targets, by name."""

    def own_of_each(self, names: Collection[str]) -> str | None:
        """Return one of these tensors if, in a world of another size, each rank had its own by that name."""


class OwnSlot:
    """Slot that this rank wrote itself.

    Args:
        slot: verified at once, except for its tensors, which are verified while they are copied.

    Raises:
        DamagedError: the slot is damaged.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._entries = {entry.name: entry for entry in slot.header().entries}
        check_pickles(self._entries)
        values, rng = (self._entries.pop(name) for name in (VALUES, RNG))
        if slot.commit_word is CommitWord.SUMMED:  # otherwise its writer ended before it had added the sums
            slot.verify((values, rng))
        self.values = slot.data(values)
        self.rng: bytes | None = slot.data(rng)
        self.parts = [
            TensorPart(
                entry.name, entry.dtype, entry.shape, entry.nbytes, entry.global_shape, entry.global_offset
            )
            for entry in self._entries.values()
        ]

    def own_of_each(self, names: Collection[str]) -> str | None:
        """See `CheckpointSource`: the world has the same size."""
        return None

    def fill(self, targets: dict[str, Tensor]) -> None:
        """See `CheckpointSource`. After an error the targets must not be used.

        Raises:
            DamagedError: a sum differs.
            MismatchError: a rank's part of a DTensor has another shape here.
        """
        into = {name: local_tensor(target) for name, target in targets.items()}
        for name, tensor in into.items():
            if tensor.shape != (shape := self._entries[name].shape):
                raise MismatchError(
                    f"this rank has {list(tensor.shape)} of {name} here, and {list(shape)} in the checkpoint"
                )
        largest_first = sorted(into, key=lambda name: -into[name].nbytes)
        # A part of a DTensor may be of a subclass, as for float8, which has no memory of its own.
        memory = {
            name: tensor.untyped_storage().data_ptr()
            for name, tensor in into.items()
            if type(tensor) is Tensor
        }
        times = Counter(memory.values())
        # Two threads would spoil each other's sums of tensors that share memory, such as tied weights.
        apart = {name for name in memory if into[name].is_cpu and times[memory[name]] == 1}
        next_apart = iter([name for name in largest_first if name in apart])

        def copy(names: Iterable[str]) -> dict[str, int]:
            return {name: self._slot.copy(self._entries[name], into[name]) for name in names}

        with ThreadPoolExecutor(own_cores(), "dlr-load") as pool:
            # After a fork the first new thread recreates torch's pool, and fails if another does the same.
            pool.submit(torch.get_num_threads).result()
            copying = [pool.submit(copy, next_apart) for _ in range(own_cores())]
            arrived = copy(name for name in largest_first if name not in apart)
            for done in copying:
                arrived |= done.result()
        self._slot.sum_up(arrived)
        self._slot.compare(arrived)


def check_pickles(entries: Mapping[str, Entry]) -> None:
    """Make sure that a slot has the pickles `VALUES` and `RNG`, as bytes; raise DamagedError otherwise."""
    for name in (VALUES, RNG):
        entry = entries.get(name)
        if entry is None or entry.dtype != "uint8" or len(entry.shape) != 1 or entry.global_shape is not None:
            raise DamagedError(f"the slot has no {name}")


@contextmanager
def own_slot(path: str, mark: Mark) -> Iterator[OwnSlot]:
    """Open a slot that must have this mark. A slot that turns out to be damaged is marked so.

    Raises:
        OSError: the slot cannot be opened.
        DamagedError: the slot has another mark, or is damaged.
    """
    slot = Slot.open(path)
    try:
        if slot.mark != mark:
            raise DamagedError(f"the slot holds {slot.mark}, not {mark}")
        try:
            yield OwnSlot(slot)
        except DamagedError:
            slot.damaged()
            raise
    finally:
        slot.close()


def own_cores() -> int:
    """Return the number of threads that load here: this process's share of the cores, up to `MAX_THREADS`.

    A quota (`limits.cpu`) is not taken into account.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // ranks))
