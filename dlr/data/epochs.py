"""Division of epochs into global batches, and of these into ranks' parts, equal steps at any world size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from crds.intervals import Intervals, count, from_text, to_text
from dlr.data.groups import (
    ALONE,
    ContributingGroups,
    Contributors,
    EpochPlace,
    StepRule,
    select,
    share,
    share_size,
    span,
)
from dlr.progress import note_samples
from dlr.ranks import are_connected

T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch(Generic[T]):
    """Samples that a rank computes at once. Each rank has the same number of micro-batches in a step."""

    data: T
    """A batch of the loader; never empty, since every rank has to take part in the collectives. With fewer
    samples than ranks, it may be a sample that another rank learns from, with `weight` 0."""
    weight: float
    """The mean loss over `data`, times this, summed over a rank's micro-batches and averaged over the ranks,
    as DDP and FSDP average gradients, is the mean over the global batch. With replica groups the sum over a
    group's micro-batches and ranks is the group's share of the samples times the number of groups, and the
    mean over the groups is that over the global batch."""
    last: bool
    """Whether it is the last of the step, before which gradients need not be averaged."""
    replicas: ContributingGroups | None = None
    """The replica groups, if there are any."""

    def accumulate(self, model: nn.Module) -> AbstractContextManager[None]:
        """Defer the average of gradients to the last micro-batch of a step; forward and backward go inside.

        It uses `model.no_sync()` of DDP and FSDP1, or `set_requires_gradient_sync` of FSDP2 (`fully_shard`),
        if the model has one of them. Replica groups defer their average, too.
        """
        if self.replicas is not None and not self.last:
            return _both(self.replicas.accumulate(), replace(self, replicas=None).accumulate(model))
        no_sync: Callable[[], AbstractContextManager[None]] | None = getattr(model, "no_sync", None)
        synchronize: Callable[[bool], None] | None = getattr(model, "set_requires_gradient_sync", None)
        if self.last or (no_sync is None and synchronize is None):
            return nullcontext()
        return no_sync() if no_sync is not None else _without(synchronize)


@contextmanager
def _both(one: AbstractContextManager[None], other: AbstractContextManager[None]) -> Iterator[None]:
    with one, other:
        yield


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
    """This rank's part of one step. Iterate it once; a rest is skipped when the next one is requested."""

    indices: list[int]
    """Samples that this rank learns from; over all ranks of all groups, each sample of the step once."""
    micro_batches: Iterator[MicroBatch[T]]

    def __iter__(self) -> Iterator[MicroBatch[T]]:
        return self.micro_batches


NO_STATE_OF_LOADERS = (
    "a loader has no state of its own over a sampler or stream of dlr.data, which says itself where training "
    "is, in any world: save and load the state of that, and leave the loader's out"
)


NOT_AGAIN = (
    "the loader is an iterator, which cannot begin again where training goes on elsewhere in the order, in "
    "another epoch or with other replica groups: give global_batches the loader itself"
)
PLACE = ("epoch", "consumed", "holes")
"""Keys of a state with the position in the order; the others describe how the order was drawn."""


class Dealt(Generic[T]):
    """Iterator over the rest of an epoch.

    torchdata's StatefulDataLoader would save the state of a sampler or dataset with its own, and restore it
    at the beginning of the next epoch. It looks in the iterator first, and finds an empty state here.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing; a loader calls it at each batch."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse a state, which would silently repeat or skip samples.

        Raises:
            ValueError: always.
        """
        raise ValueError(NO_STATE_OF_LOADERS)


@dataclass(frozen=True)
class RankShare:
    """One rank's part of a step."""

    epoch: int
    size: int
    """Number of samples in the step."""
    ranks: int
    """Number of ranks in all groups that contribute."""
    parts: tuple[Intervals, ...]
    """Samples of each micro-batch, by their position in the epoch's order."""
    stand_in: Intervals
    """Sample for a micro-batch without samples of its own."""

    def weight(self, part: Intervals) -> float:
        """Return the `weight` of one of the micro-batches."""
        return count(part) * self.ranks / self.size


class Epochs:
    """The position of training in its epochs, and this rank's part of each step.

    Args:
        length: number of samples in an epoch.
        num_replicas, rank: by default those of the process group, which must exist then.
        drop_last: whether to drop an epoch's last global batch if it is short.
        global_batch_size: number of samples per step, over all ranks.
        micro_batch_size: the most samples that a rank computes at once; by default its whole part of a step.
        constant_batch: with replica groups, whether global_batch_size is for all groups together, whatever
            their number, or else for each group.

    Raises:
        ValueError: there is no such rank, a size is below 1, or an epoch would have no step.
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
        constant_batch: bool,
    ) -> None:
        self.length = length
        self._follows_world = num_replicas is None and rank is None
        """Whether rank and world size come from the process group, where they may change."""
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.drop_last = drop_last
        self.global_batch_size = global_batch_size
        self.micro_batch_size = global_batch_size if micro_batch_size is None else micro_batch_size
        self._rule = StepRule(length, global_batch_size, constant_batch, drop_last)
        self._place = self._rule.begin(0)
        self._replicas: ContributingGroups | None = None
        self._contributors = ALONE
        """Contributors to the newest step for which a global batch was requested."""
        self._is_uncommitted = False
        """Whether the groups have not committed that step yet."""
        self._step_number: int | None = None
        """Number of that step; None if the place has been loaded since."""

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
    def epoch(self) -> int:
        """Number of the epoch that training is in."""
        return self._place.epoch

    @property
    def consumed(self) -> int:
        """Number of samples of this epoch that all ranks have done, including those of dead groups."""
        return self._rule.consumed(self._place)

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches in a whole epoch, if no group dies or joins."""
        return self._rule.steps(self.length, len(self._contributors.indices))

    def __len__(self) -> int:
        """Number of this rank's micro-batches in the rest of the epoch, if the groups do not change."""
        groups = self._contributors
        left, step = count(self._place.left), self._rule.step_size(len(groups.indices))
        steps, full = self._rule.steps(left, len(groups.indices)), left // step
        of_full, of_last = (self._micro_batches_of(share_size(size, groups)) for size in (step, left % step))
        return full * of_full + (steps - full) * of_last

    def deal_to(self, replicas: ContributingGroups) -> None:
        """Divide each step between the groups of `replicas` from now on; called by `dlr.replicas.join`.

        Then the position in the epoch advances when the groups commit a step.
        """
        self._replicas = replicas
        replicas.call_after_commit(self._commit)

    def global_batches(self, loader: Iterable[T]) -> Iterator[GlobalBatch[T]]:
        """Yield the steps in the rest of the epoch; the position advances after the iteration of each.

        With replica groups, steps of all epochs follow, without an end, and the position advances when a step
        is committed. After groups have died, joined or healed, the loader's prefetched batches are dropped,
        and the loader restarts.

        Args:
            loader: a DataLoader of this rank's micro-batches, or a wrapper that keeps their order.

        Raises:
            ValueError: it is another DataLoader, or an iterator that would have to restart.
            RuntimeError: two global batches were requested within one step of the replica groups.
        """
        if isinstance(loader, DataLoader):
            self._check(loader)
        note_samples(self.global_batch_size)
        epoch = self.epoch
        expected: Iterator[RankShare] = iter(())
        loaded: Iterator[T] | None = None
        place = self.num_replicas, self.rank
        while self._replicas is not None or self.epoch == epoch:
            mine = self._begin_step()
            if loaded is None or place != (self.num_replicas, self.rank) or next(expected, None) != mine:
                place = self.num_replicas, self.rank
                if loaded is not None and isinstance(loader, Iterator):
                    raise ValueError(NOT_AGAIN)
                loaded = None  # ends its processes before new ones start
                expected, loaded = self._rank_shares(), iter(loader)
                next(expected)
            indices = [index for part in mine.parts for index in self._indices(part)]
            micro_batches = self._step(loaded, mine)
            yield GlobalBatch(indices, micro_batches)
            for _ in micro_batches:
                pass

    def advance(self) -> None:
        """Advance by a global batch that all ranks have done, and after the last one to the next epoch.

        It is for loops that iterate the loader themselves: `global_batches` calls it after each step.

        Raises:
            RuntimeError: there are replica groups.
        """
        if self._replicas is not None:
            raise RuntimeError(
                "with replica groups a step is done when the groups commit it: iterate "
                "global_batches(loader), and leave advance() out"
            )
        self._place = self._rule.after(self._place, ALONE.indices, ALONE.indices)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; for the present one, keep the position, as after `load_state_dict`."""
        if epoch != self.epoch:
            self._place = self._rule.begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last whole step as numbers, and the samples that dead groups left out
        as a text: the same on every rank, whatever a loader has prefetched."""
        holes = to_text(self._rule.holes(self._place))
        return {"epoch": self.epoch, "consumed": self.consumed, "holes": holes, **self._drawn_with()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; the number of ranks and the batch sizes may have changed.

        Raises:
            ValueError: the state is invalid, or from within an epoch with another order.
        """
        epoch, consumed, holes = (state[key] for key in PLACE)
        here = self._drawn_with()
        there = {key: value for key, value in state.items() if key not in PLACE}
        other = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        if other and type(consumed) is int and consumed > 0:
            differences = ", ".join(f"{key} {there.get(key)} (now {here.get(key)})" for key in other)
            raise ValueError(
                f"cannot go on {consumed} samples into epoch {epoch}: its order was drawn with {differences}"
            )
        self._place = self._rule.resume(epoch, consumed, from_text(holes))
        self._step_number = None

    def _drawn_with(self) -> dict[str, int]:
        """Return the parameters of an epoch's order, besides its number."""
        raise NotImplementedError

    def _check(self, loader: DataLoader[Any]) -> None:
        """Raise ValueError if a loader does not load this rank's micro-batches in order."""
        raise NotImplementedError

    def _indices(self, part: Intervals) -> Sequence[int]:
        """Return the samples in a part of the epoch, for `GlobalBatch.indices`."""
        return [place for start, end in part for place in range(start, end)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the replica groups out: a DataLoader's processes only need the step's contributors."""
        return {**self.__dict__, "_replicas": None}

    # --- steps -------------------------------------------------------------------------------------------

    def _begin_step(self) -> RankShare:
        """Return this rank's part of the next step."""
        if self._replicas is not None:
            number = self._replicas.applied
            if self._is_uncommitted and self._step_number == number:
                raise RuntimeError(
                    f"a second global batch was asked for within step {number}: take one in each turn of "
                    "replicas.steps(), and accumulate over its micro-batches"
                )
            indices = tuple(self._replicas.contributing)
            self._contributors = Contributors(indices, self._replicas.contributors[0])
            self._is_uncommitted, self._step_number = True, number
            if self._follows_world and are_connected():
                self.num_replicas, self.rank = dist.get_world_size(), dist.get_rank()
        return self._rank_share(self._place, self._contributors)

    def _commit(self, _step: int, committed: Sequence[int]) -> None:
        """Advance by the step, if it used this sampler; a script may use another one in some steps."""
        if self._is_uncommitted:
            self._is_uncommitted = False
            self._place = self._rule.after(self._place, self._contributors.indices, frozenset(committed))

    def _step(self, loaded: Iterator[T], mine: RankShare) -> Iterator[MicroBatch[T]]:
        for number, part in enumerate(mine.parts, start=1):
            try:
                data = next(loaded)
            except StopIteration:
                raise ValueError("the loader ended before the epoch: it is not one of this epoch") from None
            yield MicroBatch(data, mine.weight(part), number == len(mine.parts), self._replicas)
        if self._replicas is None:
            self.advance()

    def _dealt(self) -> Iterator[Intervals]:
        """Yield this rank's micro-batches in the rest of the epoch, none of them empty."""
        return (part or mine.stand_in for mine in self._rank_shares() for part in mine.parts)

    def _rank_shares(self) -> Iterator[RankShare]:
        """Yield this rank's part of each step in the rest of the epoch, with the present groups."""
        return self._rank_shares_from(self._place, self._contributors)

    def _rank_shares_from(self, place: EpochPlace, groups: Contributors) -> Iterator[RankShare]:
        epoch = place.epoch
        while place.epoch == epoch:
            yield self._rank_share(place, groups)
            place = self._rule.after(place, groups.indices, groups.indices)

    def _rank_share(self, place: EpochPlace, groups: Contributors) -> RankShare:
        """Return this rank's part of a step; a group's samples are divided as evenly as possible.

        Sizes differ by one sample at most, over ranks and micro-batches, so one may be empty.
        """
        step = self._rule.step(place, len(groups.indices))
        of_group = share(step, groups)
        size = count(of_group)
        number = self.num_replicas * self._micro_batches_of(size)
        spans = (span(size, part, number) for part in range(self.rank, number, self.num_replicas))
        return RankShare(
            place.epoch,
            count(step),
            self.num_replicas * len(groups.indices),
            tuple(select(of_group, (each,)) for each in spans),
            select(step, ((0, 1),)),
        )

    def _micro_batches_of(self, size: int) -> int:
        """Return the number of micro-batches per rank for a group's share of `size` samples: at least one."""
        return max(1, -(-size // (self.num_replicas * self.micro_batch_size)))
