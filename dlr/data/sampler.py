"""Batch sampler for a dataset with a length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from crds.intervals import Intervals
from dlr.data.epochs import Dealt, Epochs


class ElasticBatchSampler(Epochs, Sampler[list[int]]):
    """Divides global batches between ranks: the `batch_sampler` of each rank's DataLoader.

    It yields this rank's micro-batches for the rest of the epoch. Their order depends only on seed and epoch,
    as in torch's DistributedSampler with one replica. All ranks pass the same arguments, except for `rank`.

    Args:
        dataset: any object with a length, such as `range(n)`.
        num_replicas, rank: by default those of the process group, which must exist then.
        drop_last: whether to drop an epoch's last global batch if it is short.
        global_batch_size: number of samples per step, over all ranks.
        micro_batch_size: the most samples that a rank computes at once; by default its whole part of a step.
        constant_batch: with replica groups, whether global_batch_size is for all groups together, whatever
            their number, or else for each group.

    Raises:
        ValueError: there is no such rank, a size is below 1, or an epoch would have no step.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        constant_batch: bool = True,
    ) -> None:
        super().__init__(
            len(dataset), num_replicas, rank, drop_last, global_batch_size, micro_batch_size, constant_batch
        )
        self.shuffle = shuffle
        self.seed = seed
        self._drawn: tuple[int | None, Tensor] | None = None
        """Seed and order of the last draw, which both the loader and the steps need."""

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        return Dealt(_at(order, part) for part in self._dealt())

    def _drawn_with(self) -> dict[str, int]:
        return {"length": self.length, "shuffle": self.shuffle, "seed": self.seed}

    def _check(self, loader: DataLoader[Any]) -> None:
        if not (loader.batch_sampler is self and loader.in_order):
            raise ValueError("the DataLoader needs this sampler as its batch_sampler, and in_order")

    def _indices(self, part: Intervals) -> Sequence[int]:
        return _at(self._order(), part)

    def _order(self) -> Tensor:
        """Return all samples in the epoch's order; read only.

        As in torch.utils.data.DistributedSampler, it is randperm of a generator seeded with seed + epoch.
        """
        seed = self.seed + self.epoch if self.shuffle else None
        if self._drawn is None or self._drawn[0] != seed:
            self._drawn = seed, _order(self.length, seed)
        return self._drawn[1]


def _at(order: Tensor, part: Intervals) -> list[int]:
    return [index for start, end in part for index in order[start:end].tolist()]


def _order(length: int, seed: int | None) -> Tensor:
    if seed is None:
        return torch.arange(length, device="cpu")
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed), device="cpu")
