"""The mean of one step's gradients over the groups, in as many versions as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dlr.replicas.exchange import Exchange
from dlr.replicas.gradients import Bucket, local, scatter


class Average:
    """The buckets of one step during their sums. The parameters' own gradients stay until `take`."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._exchange: Exchange | None = None
        self._flats: list[Tensor | None] = []
        self._sent: list[Any] = []
        self._count = 1

    def send(self, exchange: Exchange, number: int, *, contributes: bool = True) -> None:
        """Begin to sum a bucket.

        Args:
            contributes: whether this group's gradients count; otherwise it takes part with zeros.
        """
        if self._exchange is not exchange:  # an abandoned collective may still write into the old buffers
            self._exchange = exchange
            self._flats = [None] * len(self._buckets)
            self._sent = [None] * len(self._buckets)
        if self._sent[number] is None:
            bucket = self._buckets[number]
            self._flats[number] = flat = bucket.gather() if contributes else bucket.empty()
            self._sent[number] = exchange.send(flat)

    def finish(self, exchange: Exchange, count: int, *, contributes: bool) -> None:
        """Send the buckets that were not sent yet, and wait for all sums.

        Args:
            count: number of groups whose gradients count.

        Raises:
            OvertakenError, BrokenError: the sums do not arrive.
        """
        self._count = count
        if exchange.seat.size == 1:
            self._flats = []
            return
        for number in range(len(self._buckets)):
            self.send(exchange, number, contributes=contributes)
        exchange.wait(self._sent)

    def take(self) -> None:
        """Make the parameters' gradients the mean."""
        flats = [flat for flat in self._flats if flat is not None]
        if flats:
            scatter(self._buckets, flats, self._count)

    def drop(self, *, scaled: bool) -> None:
        """Leave the parameters without gradients, so that the optimizer changes nothing.

        Args:
            scaled: whether the script has a GradScaler, which refuses a step without gradients, but skips a
                step with an infinite one.
        """
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                if scaled and parameter.grad is not None:
                    local(parameter.grad).fill_(torch.inf)
                else:
                    parameter.grad = None
