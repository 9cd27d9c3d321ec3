"""What the ranks of one group agree upon among themselves, by a gloo group of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(days=30)
"""Time limit of what they agree upon: while one rank waits for other groups, which may take any time, the
others wait for it. The agents find ranks that hang."""


class OwnGroup:
    """The ranks of this process's group. All of them call each method, in the same order.

    Args:
        process_group: of the ranks; None for the default one.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        is_alone = not (dist.is_available() and dist.is_initialized())
        self.rank = 0 if is_alone else dist.get_rank(process_group)
        self.size = 1 if is_alone else dist.get_world_size(process_group)
        self._group: dist.ProcessGroup | None = None
        if self.size > 1:
            ranks = None if process_group is None else dist.get_process_group_ranks(process_group)
            self._group = dist.new_group(
                ranks, TIMEOUT, backend="gloo", use_local_synchronization=ranks is not None
            )

    def all(self, yes: bool, *numbers: int) -> tuple[bool, list[int]]:
        """Return whether all ranks say yes, and the highest of each of their numbers."""
        if self.size == 1:
            return yes, list(numbers)
        words = [int(yes), *(-number for number in numbers)]
        lowest = torch.tensor(words, dtype=torch.int64, device="cpu")
        dist.all_reduce(lowest, dist.ReduceOp.MIN, self._group)
        return bool(lowest[0]), [-number for number in lowest[1:].tolist()]

    def is_alike(self, numbers: Sequence[int]) -> bool:
        """Return whether all ranks have the same numbers, of which all have as many."""
        if self.size == 1:
            return True
        words = [*numbers, *(-number for number in numbers)]
        both = torch.tensor(words, dtype=torch.int64, device="cpu")
        dist.all_reduce(both, dist.ReduceOp.MAX, self._group)
        highest, lowest = both[: len(numbers)], both[len(numbers) :]
        return bool((highest == -lowest).all())
