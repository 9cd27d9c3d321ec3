"""Dataset of samples in files that are read sequentially.

The order of an epoch depends only on seed and epoch. All files, in a random order, form one long row of
samples, divided into *lanes* of equal length. A global batch takes the same number of samples from each lane,
and a rank's part of it consists of some lanes. So a rank reads its files from front to back, and the state is
one position in the epoch.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from dlr.data.epochs import Dealt, Epochs
from dlr.data.index import Read, sizes_of


class ElasticStream(Epochs, IterableDataset[Any]):
    """Yields each rank's micro-batches of samples from files, in the same steps at any world size.

        stream = ElasticStream(files, read, global_batch_size=512, micro_batch_size=32, index="/data/sizes")
        loader = DataLoader(stream, batch_size=None, num_workers=4)
        while stream.epoch < epochs:
            for batch in stream.global_batches(loader): ...   # as with ElasticBatchSampler

    Every rank creates one at the same time: if there is a default process group, the ranks count together.

    Args:
        files: paths, or names for `read`; the same on every rank, in the same order.
        read: `read(file, start)` yields the samples of a file in their order, from number `start` on.
        num_replicas, rank, drop_last, global_batch_size, micro_batch_size, constant_batch: as in
            ElasticBatchSampler.
        shuffle: whether to shuffle the files, and the samples within each `window`.
        window: number of consecutive samples of a lane that are shuffled together; so many of each of a
            rank's lanes are in memory.
        lanes: number of places at which the files are read at once, over all ranks; it divides
            global_batch_size. By default the largest such number up to the number of files.
        index: a JSON file with the number of samples in each file; without it they are counted at each start.
        collate: builds a micro-batch from a list of samples; by default torch's `default_collate`.

    Raises:
        TypeError: `files` is no list.
        ValueError: a file cannot be read twice, there is no sample or no such rank, or a number is invalid.
    """

    def __init__(
        self,
        files: Sequence[str | os.PathLike[str]],
        read: Read,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        constant_batch: bool = True,
        window: int = 128,
        lanes: int | None = None,
        index: str | os.PathLike[str] | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if isinstance(files, str) or not isinstance(files, Sequence):
            raise TypeError(
                f"ElasticStream needs a list of files, not {type(files).__name__}: a source of unknown "
                "length cannot be cut into lanes, nor could anybody find where another worker stopped"
            )
        self.files = [os.fspath(file) for file in files]
        self.sizes = sizes_of(self.files, read, None if index is None else Path(index))
        super().__init__(
            sum(self.sizes),
            num_replicas,
            rank,
            drop_last,
            global_batch_size,
            micro_batch_size,
            constant_batch,
        )
        self.lanes = _default_lanes(global_batch_size, len(files)) if lanes is None else lanes
        if self.lanes < 1 or global_batch_size % self.lanes or window < 1:
            raise ValueError(
                f"lanes divide global_batch_size, and window is at least 1: lanes {self.lanes}, "
                f"global_batch_size {global_batch_size}, window {window}"
            )
        self.shuffle = shuffle
        self.seed = seed
        self.window = window
        self._read = read
        self._collate = collate
        self._digest = _number_of(repr(list(zip(self.files, self.sizes, strict=True))))

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's micro-batches in the rest of the epoch; in a DataLoader's worker, its share."""
        order, worker = self._order(), get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Dealt(
            self._collate([order.sample(place) for start, end in part for place in range(start, end)])
            for part in islice(self._dealt(), first, None, step)
        )

    def _order(self) -> _Order:
        files = range(len(self.files))
        drawn = self._shuffled(len(files), "files") if self.shuffle else files
        row = _Row([self.files[file] for file in drawn], [self.sizes[file] for file in drawn], self._read)
        lanes = Lanes(self.length, self.lanes, self.global_batch_size // self.lanes)
        if self.shuffle:
            return _Order(lanes, row, self.window, self._drawn)
        return _Order(lanes, row, 1, lambda _lane, _block, size: range(size))

    def _drawn(self, lane: int, block: int, size: int) -> Sequence[int]:
        return self._shuffled(size, lane, block)

    def _shuffled(self, count: int, *what: object) -> Sequence[int]:
        generator = torch.Generator().manual_seed(_number_of(repr((self.seed, self.epoch, what))))
        order: list[int] = torch.randperm(count, generator=generator, device="cpu").tolist()
        return order

    def _drawn_with(self) -> dict[str, int]:
        return {
            "length": self.length,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "files": self._digest,
            "lanes": self.lanes,
            "global_batch_size": self.global_batch_size,
            "window": self.window,
        }

    def _check(self, loader: DataLoader[Any]) -> None:
        if loader.dataset is not self or loader.batch_size is not None or not loader.in_order:
            raise ValueError("the DataLoader needs this stream as its dataset, batch_size=None, and in_order")
        if loader.persistent_workers:
            raise ValueError(
                "the DataLoader needs persistent_workers=False: such workers would begin each epoch where "
                "they began the first one"
            )


@dataclass(frozen=True)
class Lanes:
    """Mapping of an epoch's positions to lanes, parts of the row whose lengths differ by one at most."""

    length: int
    lanes: int
    in_a_row: int
    """Number of samples of one lane before the next lane's turn."""

    def range_of(self, lane: int) -> range:
        """Return the indices of a lane in the row."""
        short, longer = divmod(self.length, self.lanes)
        begin = lane * short + min(lane, longer)
        return range(begin, begin + short + (lane < longer))

    def place(self, position: int) -> tuple[int, int]:
        """Return lane, and index within the lane, of a position in the epoch."""
        short, longer = divmod(self.length, self.lanes)
        turns, rest = divmod(short, self.in_a_row)
        turn, within = divmod(position, self.lanes * self.in_a_row)
        if turn < turns:
            lane, offset = divmod(within, self.in_a_row)
            return lane, turn * self.in_a_row + offset
        left = position - turns * self.lanes * self.in_a_row  # in the last turn, which is shorter
        if left < longer * (rest + 1):
            lane, offset = divmod(left, rest + 1)
        else:
            lane, offset = divmod(left - longer, rest)
        return lane, turns * self.in_a_row + offset


class _Row:
    """The samples of files, one after the other."""

    def __init__(self, files: Sequence[str], sizes: Sequence[int], read: Read) -> None:
        self._files = files
        self._sizes = sizes
        self._ends = list(accumulate(sizes))
        self._read = read

    def __call__(self, place: int) -> Iterator[Any]:
        """Yield the samples from an index to the end."""
        number = bisect_right(self._ends, place)
        start = place - (self._ends[number] - self._sizes[number]) if number < len(self._files) else 0
        for file, size in zip(self._files[number:], self._sizes[number:], strict=True):
            yield from self._samples(file, start, size)
            start = 0

    def _samples(self, file: str, start: int, size: int) -> Iterator[Any]:
        if start == size:
            return
        number = start
        for number, sample in enumerate(self._read(file, start), start + 1):
            if number > size:
                raise ValueError(
                    f"{file} goes on after the {size} samples that were counted. If it has not grown since, "
                    f"read({file!r}, {start}) did not begin with sample {start}"
                )
            yield sample
        if number < size:
            raise ValueError(
                f"{file} ends after {number} samples, where it had {size} when they were counted: "
                "delete the index to have them counted again, between two epochs"
            )


Draw = Callable[[int, int, int], Sequence[int]]
"""Function of lane, block of the lane, and number of samples in the block, that returns their order."""


class _Order:
    """Access to the samples of an epoch by their position."""

    def __init__(self, lanes: Lanes, row: _Row, window: int, draw: Draw) -> None:
        self._lanes = lanes
        self._row = row
        self._window = window
        self._draw = draw
        self._open: dict[int, _OpenLane] = {}

    def sample(self, position: int) -> Any:
        number, place = self._lanes.place(position)
        lane = self._open.get(number)
        if lane is None:
            places = self._lanes.range_of(number)
            lane = self._open[number] = _OpenLane(
                self._row, places, self._window, partial(self._draw, number)
            )
        return lane.sample(place)


class _OpenLane:
    """A lane, read from front to back; access to an earlier index opens it again."""

    def __init__(
        self, row: _Row, places: range, window: int, draw: Callable[[int, int], Sequence[int]]
    ) -> None:
        self._row = row
        self._places = places
        self._window = window
        self._draw = draw
        self._samples: Iterator[Any] = iter(())
        self._next: int | None = None
        self._block: int | None = None
        self._loaded: Sequence[Any] = ()

    def sample(self, place: int) -> Any:
        block, within = divmod(place, self._window)
        if block != self._block:
            self._load(block)
        return self._loaded[within]

    def _load(self, block: int) -> None:
        places = self._places[block * self._window : (block + 1) * self._window]
        if self._next is None or places.start < self._next:
            self._samples, self._next = self._row(places.start), places.start
        samples = list(islice(self._samples, places.start - self._next, places.stop - self._next))
        self._loaded = [samples[drawn] for drawn in self._draw(block, len(samples))]
        self._block, self._next = block, places.stop


def _default_lanes(global_batch_size: int, files: int) -> int:
    return max(n for n in range(1, max(files, 1) + 1) if global_batch_size % n == 0)


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
