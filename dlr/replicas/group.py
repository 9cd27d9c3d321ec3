"""Agreement of the ranks of one group, through a gloo group of their own."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(days=30)
"""Time limit of a collective: while one rank waits for other groups, which may take any time, the others wait
for it. The agents detect ranks that hang."""


class OwnGroup:
    """The ranks of this process's group. All of them call each method, in the same order.

    Args:
        process_group: process group of the ranks; None for the default one.
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._group: dist.ProcessGroup | None = None
        is_alone = not (dist.is_available() and dist.is_initialized())
        if not is_alone and dist.get_world_size(process_group) > 1:
            ranks = None if process_group is None else dist.get_process_group_ranks(process_group)
            if ranks == list(range(dist.get_world_size())):
                ranks = None  # this group has the same name in a world of any size
            self._group = dist.new_group(
                ranks, TIMEOUT, backend="gloo", use_local_synchronization=ranks is not None
            )

    @property
    def rank(self) -> int:
        """Present rank of this process in the group, which changes if the process lives on."""
        return 0 if self._group is None else dist.get_rank(self._group)

    @property
    def size(self) -> int:
        """Present number of ranks in the group."""
        return 1 if self._group is None else dist.get_world_size(self._group)

    def span(self, *numbers: int) -> tuple[list[int], list[int]]:
        """Return the minimum and the maximum of each number over the ranks; all pass equally many."""
        if self.size == 1:
            return [*numbers], [*numbers]
        both = torch.tensor([*numbers, *(-number for number in numbers)], dtype=torch.int64, device="cpu")
        dist.all_reduce(both, dist.ReduceOp.MAX, self._group)
        found: list[int] = both.tolist()
        return [-number for number in found[len(numbers) :]], found[: len(numbers)]
