"""Shard sets for training: a model learns from each element exactly once per epoch, despite failures.

Elements are leased to workers as in `dlr.shards.pull`. In each step all ranks take a part, and exchange
which: so each rank knows all elements that the model has learned from, the model's checkpoint records them,
and all ranks leave the loop after the same step. Each start resets the job's set to the loaded checkpoint.

In replica groups nothing is leased: the elements of all committed steps are in the groups' common state, so
all groups compute the same next parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from crds.intervals import LIMIT, NONE, Intervals, common, count, from_text, minus, to_text, union, whole
from crds.names import ENV_GROUPED_JOB
from crds.shard_set import SetDefinition
from dlr.data.groups import ContributingGroups, parts_of_step
from dlr.ranks import are_connected
from dlr.shards.pulling import Elements, checked, digest_of
from dlr.shards.source import LeasedShards, OwnShare, ShardsError, source_of

T = TypeVar("T")

PATIENCE_SECONDS = 0.05
"""Time for which a rank waits for a part if no rank has one. Otherwise a step is made without a wait."""
NOTHING = (0, 0)
OVER = (-1, -1)
"""Value of a rank for which no more elements will come."""


class StepPart(Elements[T]):
    """Elements that this rank computes in a step; never empty, since every rank takes part in it."""

    def __init__(self, items: Sequence[T], start: int, stop: int, weight: float) -> None:
        super().__init__(items, start, stop)
        self.weight = weight
        """Factor of the part's mean loss: averaged over the ranks, as DDP and FSDP do, the products are the
        mean over the step's elements. 0 if the elements are another rank's, for lack of own ones."""


class ElasticShards(Generic[T]):
    """Distributes the elements of a shard set, in steps that all ranks make together; it has a state.

        shards = ElasticShards("files", sorted(files))
        while shards.epoch < epochs:
            for part in shards:                          # one step of all workers
                optimizer.zero_grad()
                (criterion(model, load(part)) * part.weight).backward()
                optimizer.step()
                ...  # now and then save {"shards": shards.state_dict(), "model": ...}

    Every rank creates one at the same time. The script has to skip elements that it cannot learn from:
    nothing is tried again, since a step cannot be made twice.

    In a job with replica groups, name it in `state=` of `dlr.replicas.join`. Then `iter(shards)` has a part
    for each step, through all epochs without an end (docs/groups.md).

    Args:
        name: name of the set, in this job; nothing else may pull from it.
        items: a range, a list, or the number of elements: the same on every rank, in the same order.
        size: the most elements of a rank's part of a step.

    Raises:
        ShardsError: an argument is invalid.
    """

    def __init__(self, name: str, items: int | Sequence[T], size: int = 1) -> None:
        self._items: Sequence[Any] = checked(name, items, {"size": (size, 1, LIMIT)})
        self._part_size = size
        self.epoch = 0
        self._name, self._size, self._digest = name, len(self._items), digest_of(self._items)
        self._done: Intervals = NONE
        """Elements of this epoch that all ranks have done, including the present step's."""
        self._in_hand: tuple[int, int] | None = None
        self._source: LeasedShards | OwnShare | None = None
        self._has_begun = False
        self._replicas: ContributingGroups | None = None
        self._contributing: tuple[int, ...] | None = None
        """Indices of the groups that contribute to the present step; None between steps."""
        self._step_number: int | None = None
        """Number of the newest step with a part; None if a state was loaded since."""
        self._group = dist.new_group(backend="gloo") if are_connected() else None

    def __iter__(self) -> Iterator[StepPart[T]]:
        """Yield the rest of the epoch, and then enter the next. With replica groups, yield all epochs.

        Raises:
            ShardsError: the set cannot be pulled from.
        """
        while self._replicas is not None and self._size:
            yield self._next_of_groups(self._replicas)
        while (part := self._next()) is not None:
            yield part

    def deal_to(self, replicas: ContributingGroups) -> None:
        """Divide each step between the groups of `replicas` from now on; called by `dlr.replicas.join`.

        Then the elements of a step are done when the groups commit it.
        """
        self._replicas = replicas
        replicas.call_after_commit(self._commit)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, equal on all ranks, with the present step; save after the optimizer's step."""
        named = {"name": self._name, "size": self._size, "digest": self._digest}
        return {**named, "epoch": self.epoch, "done": to_text(self._done)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with any number of ranks.

        Raises:
            ShardsError: the state is of another set, or this set is being pulled from already.
        """
        here = self.state_dict()
        for key in ("name", "size", "digest"):
            if state[key] != here[key]:
                raise ShardsError(
                    f"shard set {self._name!r}: the checkpoint has {key} {state[key]!r}, and this "
                    f"process {here[key]!r}: go on with the same elements in the same order, or start over"
                )
        if self._has_begun:
            raise ShardsError(
                f"shard set {self._name!r}: its first part was pulled before the checkpoint was loaded: load "
                "it before the first step"
            )
        self.epoch, self._done = state["epoch"], from_text(state["done"])
        self._step_number = None

    def close(self) -> None:
        """Stop pulling: elements that this worker holds go to others."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _next(self) -> StepPart[T] | None:
        """Return the part of the next step, together with all other ranks; None if the epoch is over."""
        if not self._size:
            self._end_epoch()
            return None
        if grouped_job := os.environ.get(ENV_GROUPED_JOB):
            raise ShardsError(
                f"shard set {self._name!r}: what the replica groups of {grouped_job} have learned from is in "
                "the state that they share: name the ElasticShards in state= of dlr.replicas.join before its "
                "first step"
            )
        source = self._source or self._begin()
        if self._in_hand is not None:
            source.settle(self._in_hand, None)
            self._in_hand = None
        patience_seconds = 0.0
        while True:
            mine = source.next(self._part_size, patience_seconds) or OVER
            if mine not in (NOTHING, OVER):
                self._in_hand = mine
            everybodys = self._from_all(mine)
            parts = [part for part in everybodys if part not in (NOTHING, OVER)]
            if parts:
                return self._step(parts, len(everybodys))
            if all(each == OVER for each in everybodys):
                self._end_epoch()
                return None
            patience_seconds = PATIENCE_SECONDS

    def _next_of_groups(self, replicas: ContributingGroups) -> StepPart[T]:
        """Return this rank's part of the groups' present step."""
        if self._contributing is not None and self._step_number == replicas.applied:
            raise ShardsError(
                f"shard set {self._name!r}: a second part was asked for within step {replicas.applied}: take "
                "one in each turn of replicas.steps()"
            )
        self._turn_epoch()
        self._contributing, self._step_number = tuple(replicas.contributing), replicas.applied
        rank, ranks = self._rank
        parts, position = self._parts_of_groups(self._contributing), replicas.contributors[0]
        place = len(parts) if position is None else position * ranks + rank
        mine = parts[place] if place < len(parts) else None
        start, stop = mine or parts[0]
        total = sum(end - begin for begin, end in parts)
        weight = (stop - start) * ranks * len(self._contributing) / total if mine else 0.0
        return StepPart(self._items, start, stop, weight)

    def _parts_of_groups(self, groups: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the parts of a step, of all ranks of the first of these groups, then of the second."""
        left = minus(whole(self._size), self._done)
        return parts_of_step(left, self._part_size, self._rank[1] * max(len(groups), 1))

    def _commit(self, _step: int, committed: Sequence[int]) -> None:
        """Count the elements of the groups in the step as done.

        The parts follow from the state before the step, which a healing group has received by now.
        """
        if self._contributing is None:
            return
        groups, self._contributing = self._contributing, None
        there, owners = frozenset(committed), (index for index in groups for _ in range(self._rank[1]))
        dealt = zip(owners, self._parts_of_groups(groups), strict=False)
        self._done = union(self._done, tuple(part for owner, part in dealt if owner in there))
        self._turn_epoch()

    def _turn_epoch(self) -> None:
        """Begin the next epoch if this one is done."""
        if count(self._done) == self._size:
            self.epoch, self._done = self.epoch + 1, NONE

    @property
    def _rank(self) -> tuple[int, int]:
        """Rank of this process in its world or group, and the number of ranks."""
        return (0, 1) if self._group is None else (dist.get_rank(), dist.get_world_size())

    def _begin(self) -> LeasedShards | OwnShare:
        source = source_of(SetDefinition(self._name, self.epoch, self._size, self._digest, 0, 0))
        if not self._has_begun:  # this model has not learned from elements done after the checkpoint
            source.restore(minus(whole(self._size), self._done))
        self._source, self._has_begun = source, True
        return source

    def _step(self, parts: Sequence[tuple[int, int]], ranks: int) -> StepPart[T]:
        together = union(*((part,) for part in parts))
        total = sum(stop - start for start, stop in parts)
        if common(together, self._done) or count(together) < total:
            raise self._not_alone(f"elements {to_text(together)} are given out twice")
        self._done = union(self._done, together)
        start, stop = self._in_hand or parts[0]
        weight = (stop - start) * ranks / total if self._in_hand else 0.0
        return StepPart(self._items, start, stop, weight)

    def _end_epoch(self) -> None:
        missing = self._size - count(self._done)
        if missing:
            raise self._not_alone(f"{missing} elements were done in no step of epoch {self.epoch}")
        self.close()
        self.epoch, self._done = self.epoch + 1, NONE

    def _not_alone(self, what: str) -> ShardsError:
        return ShardsError(
            f"shard set {self._name!r}: {what}: something else pulls from a set of this name, so "
            "give the one that a model learns from a name of its own"
        )

    def _from_all(self, mine: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the part that each rank has pulled."""
        if self._group is None:
            return [mine]
        own = torch.tensor(mine, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(found, own, group=self._group)
        return [(int(start), int(stop)) for start, stop in found]
