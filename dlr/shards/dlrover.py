"""DLRover's sharding clients, with the job's shard sets in place of DLRover's master.

Under `dlrover-run`, `dlrover.python.elastic_agent.sharding.client` provides them (dlr/as_dlrover). Elsewhere:

    from dlr.shards.dlrover import ShardingClient

The elements of the set are DLRover's shards, numbered through all epochs: so a shard has the same records as
in DLRover, and no epoch waits for the previous one. docs/from-dlrover.md lists the differences.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from crds.intervals import LIMIT, Intervals, union
from crds.shard_set import SetDefinition
from dlr.shards.source import ShardsError, source_of

RETRIES = 3
"""Retries of a shard, as in DLRover, which then drops the shard; here the job fails and names it."""
SHUFFLED_TOGETHER = 50_000
"""Size of the blocks of a table's shards within which they are shuffled."""
MOST_ARGUMENTS = 8
"""Number of `ShardingClient`'s arguments; DLRover's other client takes `num_workers` after them."""
PREFETCHED = 2
"""Number of shards whose indices are fetched ahead."""


@dataclass
class Shard:
    """Records of a dataset, from `start` up to, but without, `end`."""

    name: str
    start: int
    end: int
    indices: Sequence[int] = ()
    """Records in the order of a shuffled text; empty for those from start to end."""


@dataclass
class Task:
    """A shard that this process works on."""

    task_id: int
    """Number of the shard, through all epochs."""
    shard: Shard
    reported: int = 0
    """Number of its records that are done."""

    @property
    def records(self) -> int:
        return self.shard.end - self.shard.start


class ShardingClient:
    """Distributes the shards of a dataset, each to one process of the job.

    Args:
        dataset_name: name of the dataset, in this job.
        batch_size: records per batch.
        num_epochs: number of passes through the dataset.
        dataset_size: records of the dataset.
        shuffle: whether shards, or the records of a text, are shuffled: differently in each epoch, but
            equally in all workers and after any restart.
        task_type: ignored.
        num_minibatches_per_shard: batches per shard.
        storage_type: "table", "text", or empty for "table".

    Raises:
        ShardsError: the dataset is a stream, or has no size.
    """

    def __init__(
        self,
        dataset_name: str,
        batch_size: int,
        num_epochs: int,
        dataset_size: int,
        shuffle: bool = False,
        task_type: Any = None,
        num_minibatches_per_shard: int = 10,
        storage_type: str = "",
    ) -> None:
        if storage_type not in ("", "table", "text"):
            raise ShardsError(
                f"dataset {dataset_name!r}: storage_type {storage_type!r} is a stream of "
                "unknown length, and a shard set has a size: use 'table' or 'text', or the queue's consumer "
                "groups"
            )
        numbers = {
            "batch_size": batch_size,
            "num_epochs": num_epochs,
            "dataset_size": dataset_size,
            "num_minibatches_per_shard": num_minibatches_per_shard,
        }
        for argument, number in numbers.items():
            if not isinstance(number, int) or number < 1:
                raise ShardsError(
                    f"dataset {dataset_name!r}: {argument} is {number!r}, and must be 1 or more everywhere"
                )
        self._name, self._batch_size, self._size = dataset_name, batch_size, dataset_size
        self._epochs, self._shuffle, self._is_text = num_epochs, shuffle, storage_type == "text"
        self._shard_size = batch_size * num_minibatches_per_shard
        self._per_epoch = -(-dataset_size // self._shard_size)
        if self._per_epoch * num_epochs >= LIMIT:
            raise ShardsError(f"dataset {dataset_name!r} has too many shards: there may be 2^53 - 1 at most")
        named = f"{dataset_size}/{self._shard_size}/{shuffle}/{storage_type or 'table'}"
        size = self._per_epoch * num_epochs
        self._source = source_of(SetDefinition(set_name(dataset_name), 0, size, _short(named), RETRIES, 0))
        self._lock = threading.Lock()
        self._pending: dict[int, Task] = {}
        """Tasks that are not done, by number, in the order of their fetches."""
        self._epoch = 0

    def fetch_shard(self) -> Shard | None:
        """Wait for the next shard.

        Returns:
            None when all are done, or when only shards are left that this process has not reported yet.

        Raises:
            ShardsError: the set cannot be pulled from, or a shard has failed for good.
        """
        task = self.get_task()
        return None if task is None else task.shard

    def get_task(self) -> Task | None:
        """Fetch a shard as `fetch_shard` does; the task has the number for `report_batch_done`."""
        found = self._source.next(1)
        if found is None:
            return None
        task = Task(found[0], self._shard(found[0]))
        with self._lock:
            self._pending[task.task_id] = task
            self._epoch = task.task_id // self._per_epoch
        return task

    def get_current_task(self) -> Task | None:
        """Return the oldest task that is not done."""
        with self._lock:
            return next(iter(self._pending.values()), None)

    def report_batch_done(
        self, batch_size: int | None = None, err_msg: str = "", task_ids: Sequence[int] = ()
    ) -> bool:
        """Report that records are done: of the oldest shards, or of the named ones.

        Args:
            batch_size: number of records; None for a batch.
            err_msg: reason of a failure; then the shards whose last records these are fail.
            task_ids: numbers of the shards.

        Returns:
            whether a shard is done, or has failed.
        """
        left = batch_size or self._batch_size
        settled = False
        with self._lock:
            for number in tuple(task_ids) or tuple(self._pending):
                if left <= 0:
                    break
                if (task := self._pending.get(number)) is None:
                    continue
                taken = min(left, task.records - task.reported)
                task.reported, left = task.reported + taken, left - taken
                if task.reported == task.records:
                    settled = True
                    self._settle(task, err_msg)
        return settled

    def report_all_task_error(self, err_msg: str) -> None:
        """Report that all of this process's shards have failed: other workers try them."""
        with self._lock:
            for task in tuple(self._pending.values()):
                self._settle(task, err_msg or "no reason was given")

    def get_shard_checkpoint(self) -> str:
        """Return JSON for `restore_shard_from_checkpoint`, with the undone shards of the whole job.

        Raises:
            ShardsError: the agent of this Pod does not answer.
        """
        return json.dumps(
            {
                **self._described(),
                "current_epoch": self._epoch,
                "todo": self._source.undone(),
                "doing": [],
            }
        )

    def restore_shard_from_checkpoint(self, shard_checkpoint: str) -> bool:
        """Reset the dataset, in all workers, to a checkpoint. Call it before the first fetch.

        In one round of the job only the first of these calls counts, so all workers may make it.

        Returns:
            True.

        Raises:
            ShardsError: it is no checkpoint of this dataset.
        """
        try:
            saved = json.loads(shard_checkpoint)
            undone: Intervals = union(tuple((int(a), int(b)) for a, b in (*saved["todo"], *saved["doing"])))
            described = {name: saved[name] for name in self._described()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ShardsError(
                f"dataset {self._name!r}: this is no checkpoint that get_shard_checkpoint has given here "
                f"({type(error).__name__}: {error})"
            ) from None
        for name, value in self._described().items():
            if described[name] != value:
                raise ShardsError(
                    f"dataset {self._name!r}: the checkpoint has {name} {described[name]!r}, and this "
                    f"process {value!r}: go on with the same dataset, or give it another name"
                )
        with self._lock:
            self._pending.clear()
            self._source.restore(undone)
        return True

    def get_current_epoch(self) -> int:
        """Return the epoch of the last fetched shard; the first is 0."""
        return self._epoch

    def get_total_sample_num(self) -> int:
        """Return the number of records of all epochs together."""
        return self._size * self._epochs

    def get_minibatch_count_per_epoch(self) -> int:
        return self._size // self._batch_size

    def reset_dataset(self) -> None:
        """Refuse to reset the dataset, which other workers pull from.

        Raises:
            ShardsError: always.
        """
        raise ShardsError(
            f"dataset {self._name!r} cannot be reset while workers pull from it: "
            "to repeat it, use another name or more epochs"
        )

    def _settle(self, task: Task, why_not: str) -> None:
        del self._pending[task.task_id]
        self._source.settle((task.task_id, task.task_id + 1), why_not or None)

    def _shard(self, number: int) -> Shard:
        """Return a shard with its records, as in DLRover's splitters for tables and texts."""
        epoch, place = divmod(number, self._per_epoch)
        seed = f"{self._name}/{epoch}"
        if self._shuffle and not self._is_text:
            block = place // SHUFFLED_TOGETHER
            first = block * SHUFFLED_TOGETHER
            together = min(SHUFFLED_TOGETHER, self._per_epoch - first)
            place = first + _shuffled(f"{seed}/{block}", together)[place - first]
        start = place * self._shard_size
        end = min(start + self._shard_size, self._size)
        shuffled = self._shuffle and self._is_text
        return Shard(self._name, start, end, _shuffled(seed, self._size)[start:end] if shuffled else ())

    def _described(self) -> dict[str, Any]:
        return {
            "dataset_name": self._name,
            "dataset_size": self._size,
            "num_epochs": self._epochs,
            "shard_size": self._shard_size,
            "shuffle_shards": self._shuffle,
        }


class IndexShardingClient(ShardingClient):
    """Distributes the indices of records, one at a time; forked processes may share it.

    The arguments are those of `ShardingClient`, and `num_workers`, which is ignored.
    """

    def __init__(self, *arguments: Any, num_workers: int = 1, **named: Any) -> None:
        super().__init__(*arguments[:MOST_ARGUMENTS], **named)
        self._indices: multiprocessing.SimpleQueue[tuple[int, bool] | str] = multiprocessing.SimpleQueue()
        """Index, and whether it is its shard's last; at the end an error, or "" if all are done."""
        self._room = multiprocessing.Semaphore(PREFETCHED)
        """Number of further shards to fetch ahead."""
        self._wanted = multiprocessing.Event()
        threading.Thread(target=self._prefetch, name="fetch_sample_indices", daemon=True).start()

    def fetch_sample_index(self) -> int:
        """Wait for the index of the next record.

        Raises:
            StopIteration: all are taken.
            ShardsError: the set cannot be pulled from.
        """
        self._wanted.set()
        found = self._indices.get()
        if isinstance(found, str):
            self._indices.put(found)  # for the next caller
            if found:
                raise ShardsError(found)
            raise StopIteration
        index, is_last = found
        if is_last:
            self._room.release()
        return index

    def restore_shard_from_checkpoint(self, shard_checkpoint: str) -> bool:
        if self._wanted.is_set():
            raise ShardsError(
                f"dataset {self._name!r}: indices have been fetched already, so the checkpoint comes too "
                "late: call restore_shard_from_checkpoint before the first fetch_sample_index"
            )
        return super().restore_shard_from_checkpoint(shard_checkpoint)

    def _prefetch(self) -> None:
        """Prefetch in the process that created the client: its forks only have the queue."""
        self._wanted.wait()
        end = ""
        try:
            while self._room.acquire() and (shard := self.fetch_shard()) is not None:
                indices = shard.indices or range(shard.start, shard.end)
                for place, index in enumerate(indices, 1):
                    self._indices.put((index, place == len(indices)))
        except ShardsError as error:
            end = str(error)
        self._indices.put(end)


def set_name(dataset: str) -> str:
    """Return the name of the shard set for a dataset, whose own name may be arbitrary, such as a path."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", dataset):
        return dataset
    readable = re.sub(r"[^A-Za-z0-9]+", "-", dataset)[-40:].strip("-")
    return f"{readable}-{_short(dataset)}".lstrip("-")


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=2)  # the end of an epoch overlaps with the next
def _shuffled(seed: str, number: int) -> list[int]:
    found = list(range(number))
    random.Random(seed).shuffle(found)
    return found
