"""Division of a step's samples between replica groups, and the rest of the epoch after a group's death.

A step takes the first samples that are left of the epoch, in its order. So a dead group's samples are at the
head of the next step. All groups compute the same from the same list of contributors, without communication.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from crds.intervals import NONE, Intervals, count, first, minus, union, whole


class Contribution(NamedTuple):
    """Position of a group among those whose gradients count in a step."""

    place: int | None
    """0 for the first group; None for a group that contributes nothing."""
    groups: int
    """Number of groups that contribute."""


class ContributingGroups(Protocol):
    """The part of `dlr.replicas.Replicas` that data need."""

    @property
    def applied(self) -> int:
        """Number of applied steps, which is the number of the present step."""

    @property
    def contributors(self) -> Contribution:
        """Position of this group among those that contribute to this step."""

    @property
    def contributing(self) -> Sequence[int]:
        """Indices of the groups that contribute to this step, by position.

        Every group that contributes to a step has begun it with the same list.
        """

    def accumulate(self) -> AbstractContextManager[None]:
        """Leave the gradients of the backward passes inside for a later one of the step."""

    def call_after_commit(self, act: Callable[[int, Sequence[int]], None]) -> None:
        """Call `act` after each committed step, with its number and the indices of the groups in it."""


@dataclass(frozen=True)
class Contributors:
    """The groups that contribute to a step, at its beginning."""

    indices: tuple[int, ...]
    position: int | None
    """Position of this process's group among them; None if it contributes nothing."""


ALONE = Contributors((0,), 0)
"""Contributors without replica groups."""


@dataclass(frozen=True)
class EpochPlace:
    """Position of training in its epochs."""

    epoch: int
    left: Intervals
    """Samples that no step of this epoch has learned from, by their position in its order. Never too few for
    a step."""


@dataclass(frozen=True)
class StepRule:
    """Rule by which epochs are divided into steps, and steps into the groups' shares.

    Args:
        length: number of samples in an epoch.
        batch_size: number of samples in a step, or, without constant_batch, of each group in a step.
        constant_batch: whether the number of samples in a step is independent of the number of groups.
        drop_last: whether to drop the rest of an epoch if it is less than batch_size.
    """

    length: int
    batch_size: int
    constant_batch: bool
    drop_last: bool

    def begin(self, epoch: int) -> EpochPlace:
        """Return the beginning of an epoch."""
        return EpochPlace(epoch, whole(self.length))

    def place(self, epoch: int, left: Intervals) -> EpochPlace:
        """Return this position, or the beginning of the next epoch if too little is left for a step."""
        enough = self.batch_size if self.drop_last else 1
        return EpochPlace(epoch, left) if count(left) >= enough else self.begin(epoch + 1)

    def resume(self, epoch: int, consumed: int, holes: Intervals) -> EpochPlace:
        """Return the position with these `consumed` and `holes`.

        Raises:
            ValueError: there is no such position.
        """
        numbers = all(type(number) is int and number >= 0 for number in (epoch, consumed))
        if not numbers or (holes and holes[-1][1] > consumed) or consumed >= self.length + bool(holes):
            raise ValueError(
                f"there is no place in training with {consumed} samples of epoch {epoch} done, and "
                f"{count(holes)} of them left out"
            )
        ahead = ((consumed, self.length),) if consumed < self.length else NONE
        return self.place(epoch, union(holes, ahead))

    def consumed(self, place: EpochPlace) -> int:
        """Return the position in the order from which on no sample is done."""
        start, end = place.left[-1]
        return start if end == self.length else self.length

    def holes(self, place: EpochPlace) -> Intervals:
        """Return the samples before `consumed` that are left, fewer than a step has."""
        return minus(place.left, ((self.consumed(place), self.length),))

    def steps(self, left: int, groups: int) -> int:
        """Return the number of steps for `left` samples, if the number of groups stays the same."""
        full, rest = divmod(left, self.step_size(groups))
        return full + (rest >= (self.batch_size if self.drop_last else 1))

    def step_size(self, groups: int) -> int:
        """Return the number of samples in a step of so many groups, before the end of an epoch."""
        return self.batch_size if self.constant_batch else self.batch_size * max(groups, 1)

    def step(self, place: EpochPlace, groups: int) -> Intervals:
        """Return the samples of the next step of so many groups."""
        return first(place.left, self.step_size(groups), len(place.left))

    def after(self, place: EpochPlace, groups: Sequence[int], committed: Collection[int]) -> EpochPlace:
        """Return the position after a step.

        Args:
            place: position before the step.
            groups: indices of the groups that contributed at the beginning of the step, by position.
            committed: indices of the groups whose gradients are in the step.
        """
        step = self.step(place, len(groups))
        size = count(step)
        kept = [span(size, at, len(groups)) for at, index in enumerate(groups) if index in committed]
        return self.place(place.epoch, minus(place.left, select(step, union(tuple(kept)))))


def span(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return start and end of one of `parts` consecutive parts, whose sizes differ by one at most."""
    return size * part // parts, size * (part + 1) // parts


def parts_of_step(left: Intervals, part_size: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return the parts of a step, as (start, end), in the order of the elements.

    Args:
        left: elements that no step has learned from.
        part_size: elements of a part; one before a gap may have fewer.
        most: number of parts, one for each rank of all groups.
    """
    parts: list[tuple[int, int]] = []
    for start, end in left:
        for at in range(start, min(end, start + part_size * (most - len(parts))), part_size):
            parts.append((at, min(at + part_size, end)))
        if len(parts) == most:
            break
    return tuple(parts)


def share_size(size: int, groups: Contributors) -> int:
    """Return the number of samples of a step of this size that this group learns from."""
    if groups.position is None:
        return 0
    start, end = span(size, groups.position, len(groups.indices))
    return end - start


def share(step: Intervals, groups: Contributors) -> Intervals:
    """Return the samples of a step that this group learns from."""
    if groups.position is None:
        return NONE
    return select(step, (span(count(step), groups.position, len(groups.indices)),))


def select(of: Intervals, offsets: Sequence[tuple[int, int]]) -> Intervals:
    """Return the numbers of a set at some offsets, like slices of the sorted numbers.

    Args:
        of: the set.
        offsets: ascending pairs of start and end, some of which may be empty.
    """
    chosen: list[tuple[int, int]] = []
    at = before = 0
    for start, end in offsets:
        while start < end and at < len(of):
            low, high = of[at]
            if before + high - low <= start:
                before += high - low
                at += 1
                continue
            stop = min(end, before + high - low)
            chosen.append((low + start - before, low + stop - before))
            start = stop
    return union(tuple(chosen))
