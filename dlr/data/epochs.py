"""Epochs cut into global batches, and these into the ranks' parts: the same steps at whatever world size."""

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
    """What a rank computes at once. Each rank has the same number of them in a step."""

    data: T
    """What the loader gave: never empty, since every rank has to take part in the collectives. Where there
    are fewer samples than ranks, it is one that another rank learns from, and `weight` is 0."""
    weight: float
    """The mean loss over `data`, times this, summed over a rank's micro-batches and averaged over the ranks,
    as DDP and FSDP average gradients, is the mean over the global batch. With replica groups the sum over a
    group's micro-batches and ranks is the group's share of the samples times the number of groups, and the
    mean over the groups is that over the global batch."""
    last: bool
    """Whether the step ends with it: gradients need not be averaged before."""
    replicas: ContributingGroups | None = None
    """The replica groups, if there are any."""

    def accumulate(self, model: nn.Module) -> AbstractContextManager[None]:
        """Average no gradients for all but the last micro-batch of a step: forward and backward go inside.

        That is `model.no_sync()` of DDP and FSDP1, `set_requires_gradient_sync` of FSDP2 (`fully_shard`), and
        nothing for a model that has neither. Replica groups average no sooner either.
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
    """This rank's part of one step. Iterate it once; what is left when the next is asked for is skipped."""

    indices: list[int]
    """The samples that this rank learns from; over all ranks of all groups, each sample of the step once."""
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
"""Keys of a state that say where in the order training is; the others say how that was drawn."""


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


@dataclass(frozen=True)
class RankShare:
    """What one rank computes in a step."""

    epoch: int
    size: int
    """Samples of the step."""
    ranks: int
    """Number of ranks in all groups that contribute."""
    parts: tuple[Intervals, ...]
    """Samples of each micro-batch, by their place in the epoch's order."""
    stand_in: Intervals
    """The sample of a micro-batch that has none of its own."""

    def weight(self, part: Intervals) -> float:
        """Return the `weight` of one of the micro-batches."""
        return count(part) * self.ranks / self.size


class Epochs:
    """The position of training in its epochs, and this rank's part of each step.

    length: samples of an epoch
    num_replicas, rank: by default those of the process group, which must be there then
    drop_last: leave out an epoch's last global batch if it is short; without it, the batch is dealt as it is
    global_batch_size: samples a step, over all ranks
    micro_batch_size: the most samples that a rank computes at once; by default its whole part of a step
    constant_batch: with replica groups, whether global_batch_size is that of all groups together, whatever
        their number; else it is that of each group

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
        constant_batch: bool,
    ) -> None:
        self.length = length
        self._follows_world = num_replicas is None and rank is None
        """Whether rank and number of ranks are the process group's, which may change in a process."""
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        self.drop_last = drop_last
        self.global_batch_size = global_batch_size
        self.micro_batch_size = global_batch_size if micro_batch_size is None else micro_batch_size
        self._rule = StepRule(length, global_batch_size, constant_batch, drop_last)
        self._place = self._rule.begin(0)
        self._replicas: ContributingGroups | None = None
        self._contributors = ALONE
        """Those of the newest step for which a global batch was dealt."""
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
        """Samples of this epoch that all ranks together are done with, but for those of groups that died."""
        return self._rule.consumed(self._place)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in a whole epoch, if no group dies or joins."""
        return self._rule.steps(self.length, len(self._contributors.indices))

    def __len__(self) -> int:
        """Micro-batches of this rank in the rest of the epoch, if the groups stay those that they are."""
        groups = self._contributors
        left, step = count(self._place.left), self._rule.step_size(len(groups.indices))
        steps, full = self._rule.steps(left, len(groups.indices)), left // step
        of_full, of_last = (self._micro_batches_of(share_size(size, groups)) for size in (step, left % step))
        return full * of_full + (steps - full) * of_last

    def deal_to(self, replicas: ContributingGroups) -> None:
        """Share out each step over the groups of `replicas` from now on; `dlr.replicas.join` calls it.

        A step then moves on in the epoch when the groups commit it.
        """
        self._replicas = replicas
        replicas.call_after_commit(self._commit)

    def global_batches(self, loader: Iterable[T]) -> Iterator[GlobalBatch[T]]:
        """The steps in the rest of the epoch, each of which moves on in the epoch when it has been iterated.

        With replica groups, the steps of this epoch and those after it, without an end; each moves on when it
        is committed. Where groups have died, joined or healed, what the loader has read ahead is dropped, and
        the loader begins again.

        loader: a DataLoader of this rank's micro-batches, or what passes its batches on in order

        Raises ValueError if it is another DataLoader, or an iterator that would have to begin again;
        RuntimeError if two global batches are asked for within one step of the replica groups.
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
                loaded = None  # whose processes end before others begin
                expected, loaded = self._rank_shares(), iter(loader)
                next(expected)
            indices = [index for part in mine.parts for index in self._indices(part)]
            micro_batches = self._step(loaded, mine)
            yield GlobalBatch(indices, micro_batches)
            for _ in micro_batches:
                pass

    def advance(self) -> None:
        """A global batch is done, on all ranks; after an epoch's last one the next epoch begins.

        For loops that iterate the loader themselves: `global_batches` calls it at the end of each step.

        Raises RuntimeError with replica groups.
        """
        if self._replicas is not None:
            raise RuntimeError(
                "with replica groups a step is done when the groups commit it: iterate "
                "global_batches(loader), and leave advance() out"
            )
        self._place = self._rule.after(self._place, ALONE.indices, ALONE.indices)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch; stay where we are if it is the present one, as after `load_state_dict`."""
        if epoch != self.epoch:
            self._place = self._rule.begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last whole step in plain numbers, and what dead groups left of the steps
        before as a text: the same on every rank, whatever a loader has read ahead."""
        holes = to_text(self._rule.holes(self._place))
        return {"epoch": self.epoch, "consumed": self.consumed, "holes": holes, **self._drawn_with()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; the number of ranks and the batch sizes may be others than they were.

        Raises ValueError if it is from within an epoch whose order was another, or from none.
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
        """What the order of an epoch depends on, besides its number."""
        raise NotImplementedError

    def _check(self, loader: DataLoader[Any]) -> None:
        """Raises ValueError if it does not load this rank's micro-batches in order."""
        raise NotImplementedError

    def _indices(self, part: Intervals) -> Sequence[int]:
        """What `GlobalBatch.indices` says of a part of the epoch."""
        return [place for start, end in part for place in range(start, end)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the replica groups out: a DataLoader's processes need the step's contributors alone."""
        return {**self.__dict__, "_replicas": None}

    # --- steps -------------------------------------------------------------------------------------------

    def _begin_step(self) -> RankShare:
        """Return what this rank computes in the step that is made next."""
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
        """Move on behind the step that was dealt; a script may deal from another sampler in some steps."""
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
        """This rank's micro-batches in the rest of the epoch, none of them empty: see `MicroBatch.data`."""
        return (part or mine.stand_in for mine in self._rank_shares() for part in mine.parts)

    def _rank_shares(self) -> Iterator[RankShare]:
        """This rank's part of each step in the rest of the epoch, with the groups that there are now."""
        return self._rank_shares_from(self._place, self._contributors)

    def _rank_shares_from(self, place: EpochPlace, groups: Contributors) -> Iterator[RankShare]:
        epoch = place.epoch
        while place.epoch == epoch:
            yield self._rank_share(place, groups)
            place = self._rule.after(place, groups.indices, groups.indices)

    def _rank_share(self, place: EpochPlace, groups: Contributors) -> RankShare:
        """This rank's part of a step; a group's samples are cut for all its ranks as evenly as can be.

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
        """How many micro-batches each rank computes of a group's share of so many samples: at least one."""
        return max(1, -(-size // (self.num_replicas * self.micro_batch_size)))
