"""Sums of 64-bit words, modulo 2⁶⁴, weighted by place.

A word's weight is the product of two odd numbers, of its row and of its column. So the sum detects any change
of one word, and any exchange of two words unless they differ only in their highest bit. A thread sums up
20 GB a second, and large data is divided among as many threads as torch has in this process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

ROW_WORDS = 1024
_ROWS_PER_THREAD = 4096
"""Least number of rows that is worth a thread: 32 MiB take a processor a millisecond and a half."""
_ON_DEVICE_WORDS = 4 << 20
"""Words of which a device makes a weighted copy at a time."""
_GOLDEN, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_REST_WEIGHT = 0x94D049BB133111EB


def wrapped(number: int) -> int:
    """Return a number modulo 2⁶⁴, in the range of an int64."""
    return (number + 2**63) % 2**64 - 2**63


def _weight(place: int) -> int:
    """Return an odd number that differs from its neighbours in about half of its bits (splitmix64)."""
    number = (place + 1) * _GOLDEN % 2**64
    number = (number ^ number >> 30) * _MIX % 2**64
    return wrapped((number ^ number >> 27) | 1)


_COLUMNS = torch.tensor([_weight(column) for column in range(ROW_WORDS)], dtype=torch.int64, device="cpu")


class WordSum:
    """Sum of words that come in parts; all parts but the last are whole rows."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._rest = 0
        """The last, incomplete word, filled up with zeros; it has a weight of its own."""

    def add_bytes(self, data: bytearray | memoryview) -> None:
        """Add the next bytes; all but the last are whole rows."""
        words = len(data) // 8
        if words:
            self.add(torch.frombuffer(data, dtype=torch.int64, count=words))
        self._rest = int.from_bytes(data[words * 8 :], "little")

    def add(self, words: Tensor) -> None:
        """Add the next words, a flat tensor of int64 on any device."""
        whole = words.numel() // ROW_WORDS * ROW_WORDS
        columns = _COLUMNS if words.is_cpu else _COLUMNS.to(words.device)
        if whole:
            rows = words[:whole].view(-1, ROW_WORDS)
            if words.is_cpu:
                self._rows.extend(_row_sums(rows))
            else:  # a GPU cannot multiply matrices of integers
                for some in torch.split(rows, _ON_DEVICE_WORDS // ROW_WORDS):
                    self._rows.append((some * columns).sum(1))
        if whole < words.numel():
            rest = words[whole:]
            self._rows.append((rest * columns[: rest.numel()]).sum().reshape(1))

    def total(self) -> int:
        if not self._rows:
            return wrapped(self._rest * _REST_WEIGHT)
        rows = torch.cat(self._rows).cpu()
        weights = (torch.arange(1, len(rows) + 1, device="cpu") * wrapped(_GOLDEN)) | 1
        weights = (weights ^ (weights >> 29)) * wrapped(_MIX) | 1
        return wrapped(int((rows * weights).sum()) + self._rest * _REST_WEIGHT)


def _row_sums(rows: Tensor) -> list[Tensor]:
    """Return the weighted sums of rows, in order, by several threads: torch itself would use one."""
    threads = min(torch.get_num_threads(), len(rows) // _ROWS_PER_THREAD)
    if threads < 2:
        return [rows @ _COLUMNS]
    with ThreadPoolExecutor(threads, "dlr-sum") as pool:
        return list(pool.map(lambda some: some @ _COLUMNS, torch.tensor_split(rows, threads)))


def sum_of(data: bytearray | memoryview) -> int:
    total = WordSum()
    total.add_bytes(data)
    return total.total()
