"""Epochs cut into global batches, and these into the ranks' parts: the same steps at whatever world size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from dlr.progress import note_samples

T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch(Generic[T]):
    """What a rank computes at once. Each rank has the same number of them in a step."""

    data: T
    """What the loader gave: never empty, since every rank has to take part in the collectives. Where there
    are fewer samples than ranks, it is one that another rank learns from, and `weight` is 0."""
    weight: float
    """The mean loss over `data`, times this, summed over a rank's micro-batches and averaged over the ranks,
    as DDP and FSDP average gradients, is the mean over the global batch."""
    last: bool
    """Whether the step ends with it: gradients need not be averaged before."""

    def accumulate(self, model: nn.Module) -> AbstractContextManager[None]:
        """Average no gradients for all but the last micro-batch of a step: forward and backward go inside.

        That is `model.no_sync()` of DDP and FSDP1, `set_requires_gradient_sync` of FSDP2 (`fully_shard`), and
        nothing for a model that has neither.
        """
        no_sync: Callable[[], AbstractContextManager[None]] | None = getattr(model, "no_sync", None)
        synchronize: Callable[[bool], None] | None = getattr(model, "set_requires_gradient_sync", None)
        if self.last or (no_sync is None and synchronize is None):
            return nullcontext()
        return no_sync() if no_sync is not None else _without(synchronize)


@contextmanager
def _without(synchronize: Callable[[bool], None] | None) -> Iterator[None]:
    assert synchronize is not None
    synchronize(False)
    try:
        yield
    finally:
        synchronize(True)


@dataclass(frozen=True)
class GlobalBatch(Generic[T]):
    """This rank's part of one step. Iterate it once; what is left when the next is asked for is skipped."""

    indices: list[int]
    """The samples that this rank learns from; over all ranks, each sample of the step once."""
    micro_batches: Iterator[MicroBatch[T]]

    def __iter__(self) -> Iterator[MicroBatch[T]]:
        return self.micro_batches


NO_STATE_OF_LOADERS = (
    "a loader has no state of its own over a sampler or stream of dlr.data, which says itself where training "
    "is, in any world: save and load the state of that, and leave the loader's out"
)


class Dealt(Generic[T]):
    """What is dealt in the rest of an epoch.

    torchdata's StatefulDataLoader would save the state of a sampler or dataset with its own, and put it back
    at the beginning of the next epoch. It looks for a state here first, and finds none.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a loader asks at each batch."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse it: samples would be trained on twice, or left out, in silence.

        Raises:
            ValueError: always.
        """
        raise ValueError(NO_STATE_OF_LOADERS)


class Epochs:
    """The position of training in its epochs, and this rank's part of each step.

    length: samples of an epoch
    num_replicas, rank: by default those of the process group, which must be there then
    drop_last: leave out an epoch's last global batch if it is short; without it, the batch is dealt as it is
    global_batch_size: samples a step, over all ranks
    micro_batch_size: the most samples that a rank computes at once; by default its whole part of a step

    Raises ValueError if there is no such rank, a size is below 1, or an epoch would be without a step.
    """

    has_no_loader_state = True
    """A loader over this has no state of its own to save."""

    def __init__(
        self,
        length: int,
        num_replicas: int | None,
        rank: int | None,
        drop_last: bool,
        global_batch_size: int,
        micro_batch_size: int | None,
    ) -> None:
        self.length = length
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.drop_last = drop_last
        self.global_batch_size = global_batch_size
        self.micro_batch_size = global_batch_size if micro_batch_size is None else micro_batch_size
        self.epoch = 0
        self.consumed = 0
        """Samples of this epoch that all ranks together are done with."""

        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"there is no rank {self.rank} among {self.num_replicas}")
        if self.global_batch_size < 1 or self.micro_batch_size < 1:
            raise ValueError(
                f"batches have at least one sample: global_batch_size {global_batch_size}, "
                f"micro_batch_size {micro_batch_size}"
            )
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"no step in an epoch: {self.length} samples, global_batch_size {global_batch_size}, "
                f"drop_last {drop_last}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in a whole epoch."""
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        """Micro-batches of this rank in the rest of the epoch."""
        full, rest = divmod(self._end - self.consumed, self.global_batch_size)
        return full * self._micro_batches_of(self.global_batch_size) + self._micro_batches_of(rest)

    def global_batches(self, loader: Iterable[T]) -> Iterator[GlobalBatch[T]]:
        """The steps in the rest of the epoch, each of which moves on in the epoch when it has been iterated.

        loader: a DataLoader of this rank's micro-batches, or what passes its batches on in order

        Raises ValueError if it is another DataLoader.
        """
        if isinstance(loader, DataLoader):
            self._check(loader)
        note_samples(self.global_batch_size)
        loaded = iter(loader)
        for batch in self._batches():
            parts = self._parts(batch)
            micro_batches = self._step(loaded, parts, len(batch))
            yield GlobalBatch([index for part in parts for index in self._indices(part)], micro_batches)
            for _ in micro_batches:
                pass

    def advance(self) -> None:
        """A global batch is done, on all ranks; after an epoch's last one the next epoch begins.

        For loops that iterate the loader themselves: `global_batches` calls it at the end of each step.
        """
        self._move_to(self.consumed + self.global_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch; stay where we are if it is the present one, as after `load_state_dict`."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position of the last whole step in plain numbers: the same on every rank, whatever a
        loader has read ahead."""
        return {"epoch": self.epoch, "consumed": self.consumed, **self._drawn_with()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from `state`; the number of ranks and the batch sizes may be others than they were.

        Raises ValueError if it is from within an epoch whose order was another, or from none.
        """
        place = state["epoch"], state["consumed"]
        if not all(type(number) is int and number >= 0 for number in place) or (
            place[1] and self._drawn_with()["length"] == state.get("length") and place[1] >= self.length
        ):
            raise ValueError(
                f"there is no place in training with {place[1]} samples of epoch {place[0]} done"
            )
        here = self._drawn_with()
        there = {key: value for key, value in state.items() if key not in ("epoch", "consumed")}
        other = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        if other and state["consumed"]:
            differences = ", ".join(f"{key} {there.get(key)} (now {here.get(key)})" for key in other)
            raise ValueError(
                f"cannot go on {state['consumed']} samples into epoch {state['epoch']}: "
                f"its order was drawn with {differences}"
            )
        self.epoch = state["epoch"]
        self._move_to(state["consumed"])

    def _drawn_with(self) -> dict[str, int]:
        """What the order of an epoch depends on, besides its number."""
        raise NotImplementedError

    def _check(self, loader: DataLoader[Any]) -> None:
        """Raises ValueError if it does not load this rank's micro-batches in order."""
        raise NotImplementedError

    def _indices(self, part: range) -> Sequence[int]:
        """What `GlobalBatch.indices` says of a part of the epoch."""
        return part

    @property
    def _end(self) -> int:
        """How many samples this epoch has."""
        left = self.length - self.consumed
        return self.length - left % self.global_batch_size if self.drop_last else self.length

    def _move_to(self, consumed: int) -> None:
        self.consumed = consumed
        if self.consumed >= self._end:
            self.epoch, self.consumed = self.epoch + 1, 0

    def _batches(self) -> Iterator[range]:
        """The global batches in the rest of the epoch, as slices of its order."""
        starts = range(self.consumed, self._end, self.global_batch_size)
        end = self._end
        return (range(start, min(start + self.global_batch_size, end)) for start in starts)

    def _micro_batches_of(self, batch_size: int) -> int:
        """How many micro-batches each rank computes for a global batch of so many samples."""
        return -(-batch_size // (self.num_replicas * self.micro_batch_size))

    def _parts(self, batch: range) -> list[range]:
        """This rank's micro-batches of a global batch, which is cut for all ranks as evenly as can be.

        Sizes differ by one sample at most, over ranks and micro-batches, so one may be empty.
        """
        size = len(batch)
        count = self.num_replicas * self._micro_batches_of(size)
        return [
            batch[size * number // count : size * (number + 1) // count]
            for number in range(self.rank, count, self.num_replicas)
        ]

    def _dealt(self) -> Iterator[range]:
        """This rank's micro-batches in the rest of the epoch, none of them empty: see `MicroBatch.data`."""
        for batch in self._batches():
            for part in self._parts(batch):
                yield part or batch[:1]

    def _step(self, loaded: Iterator[T], parts: list[range], batch_size: int) -> Iterator[MicroBatch[T]]:
        for number, part in enumerate(parts, start=1):
            weight = len(part) * self.num_replicas / batch_size
            try:
                data = next(loaded)
            except StopIteration:
                raise ValueError("the loader ended before the epoch: it is not one of this epoch") from None
            yield MicroBatch(data, weight, last=number == len(parts))
        self.advance()
