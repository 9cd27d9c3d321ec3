"""How this process reads back what its rank wrote into memory.

Each tensor is verified as it arrives, in one pass over it. Half of the time goes to the pages that a new
process is given, which the kernel clears first; so several threads fill tensors, where there are the cores.
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
"""By then memory is what limits them."""


class CheckpointSource(Protocol):
    """A whole checkpoint, as one rank sees it."""

    parts: list[TensorPart]
    """Its tensors."""
    values: bytes
    rng: bytes | None

    def fill(self, targets: dict[str, Tensor]) -> None:
        """Copy tensors into those that are given, by name."""

    def own_of_each(self, names: Collection[str]) -> str | None:
        """One of these tensors, if each rank of another world had its own under that name."""


class OwnSlot:
    """What this rank wrote itself.

    Args:
        slot: its tensors are verified as they are copied, and all else before.

    Raises:
        DamagedError: it is not what was written.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._entries = {entry.name: entry for entry in slot.header().entries}
        check_pickles(self._entries)
        values, rng = (self._entries.pop(name) for name in (VALUES, RNG))
        if slot.commit_word is CommitWord.SUMMED:  # else its writer was ended before it had added the sums
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
        """See `CheckpointSource`: this is the same world."""
        return None

    def fill(self, targets: dict[str, Tensor]) -> None:
        """See `CheckpointSource`. A sum that differs is damage: what was filled must not be used then.

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
        # A part of a DTensor may be of a class of its own, as for float8, and such a tensor has no memory.
        memory = {
            name: tensor.untyped_storage().data_ptr()
            for name, tensor in into.items()
            if type(tensor) is Tensor
        }
        times = Counter(memory.values())
        # Of tensors that share their memory, as tied weights do, two threads would spoil each other's sums.
        apart = {name for name in memory if into[name].is_cpu and times[memory[name]] == 1}
        next_apart = iter([name for name in largest_first if name in apart])

        def copy(names: Iterable[str]) -> dict[str, int]:
            return {name: self._slot.copy(self._entries[name], into[name]) for name in names}

        with ThreadPoolExecutor(own_cores(), "dlr-load") as pool:
            # After a fork the first new thread makes torch's pool anew, and fails if another does so too.
            pool.submit(torch.get_num_threads).result()
            copying = [pool.submit(copy, next_apart) for _ in range(own_cores())]
            arrived = copy(name for name in largest_first if name not in apart)
            for done in copying:
                arrived |= done.result()
        self._slot.sum_up(arrived)
        self._slot.compare(arrived)


def check_pickles(entries: Mapping[str, Entry]) -> None:
    """Make sure that a slot has what is no tensor; raise DamagedError where it has not, or not as bytes."""
    for name in (VALUES, RNG):
        entry = entries.get(name)
        if entry is None or entry.dtype != "uint8" or len(entry.shape) != 1 or entry.global_shape is not None:
            raise DamagedError(f"the slot has no {name}")


@contextmanager
def own_slot(path: str, mark: Mark) -> Iterator[OwnSlot]:
    """Read a slot that holds what it is to hold. If it turns out to be damaged, it says so from then on.

    Raises:
        OSError: it cannot be opened.
        DamagedError: it holds something else, or is not what was written.
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
    """How many threads may load here: this process's share of the cores that it may run on.

    A quota (`limits.cpu`) does not show: a rank then has up to `MAX_THREADS`, for as long as `load` takes.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // ranks))
