"""`pull`: yields the elements of a set, part by part, until the set is done in the whole job."""

from __future__ import annotations

import hashlib
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from crds.intervals import LIMIT
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_RETRIES, SetDefinition
from dlr.shards.source import LeasedShards, OwnShare, ShardsError, source_of

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Elements(Sequence[T], Generic[T]):
    """Consecutive elements of a set."""

    def __init__(self, items: Sequence[T], start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        """Half-open interval of the elements' indices in the set."""
        self._items = items

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self._items[at] for at in range(self.start, self.stop)[place]]
        return self._items[range(self.start, self.stop)[place]]

    def __repr__(self) -> str:
        return f"<part {self.start}-{self.stop - 1}>"


class Part(Elements[T]):
    """Elements that this process works on now. They count as done when the next part is requested.

    As a context manager it turns an exception into a failure of the part.
    """

    failure: str | None = None
    """Reason of a failure; None without one."""

    def fail(self, reason: str = "") -> None:
        """Report that this part failed: another worker tries it, up to `retries` times."""
        self.failure = (reason or "no reason was given")[:MAX_SHARD_REASON]

    def __enter__(self) -> Part[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Print and suppress an Exception, which fails the part; let others, such as SystemExit, pass."""
        if not isinstance(error, Exception):
            return False
        traceback.print_exception(error)
        self.fail(f"{type(error).__name__}: {error}")
        return True


class Pull(Iterator[Part[T]], Generic[T]):
    """Iterator over this process's parts, which ends when the whole set is over, in all workers."""

    def __init__(self, definition: SetDefinition, items: Sequence[T], part_size: int) -> None:
        self._definition, self._items, self._part_size = definition, items, part_size
        self._source: LeasedShards | OwnShare | None = None
        self._part: Part[T] | None = None
        self._is_over = not definition.size
        self.failed: list[int] = []
        """Indices of the elements that failed for good, set at the end, if `max_failed` allows any."""

    def __next__(self) -> Part[T]:
        """Settle the part at hand, and wait for the next one.

        Raises:
            ShardsError: the set cannot be pulled from, or more elements have failed than `max_failed`.
        """
        if self._is_over:
            raise StopIteration
        if self._source is None:
            self._source = source_of(self._definition)
        self._settle()
        found = self._source.next(self._part_size)
        if found is None:
            self.failed = [place for start, end in self._source.failed for place in range(start, end)]
            self._is_over = True
            self.close()
            raise StopIteration
        self._part = Part(self._items, *found)
        return self._part

    def close(self) -> None:
        """Stop pulling: the part at hand, and this worker's other leased elements, go to others."""
        self._part = None
        if self._source is not None:
            self._source.close()
            self._source = None

    def __enter__(self) -> Pull[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self) -> None:
        part, self._part = self._part, None
        if part is not None and self._source is not None:
            self._source.settle((part.start, part.stop), part.failure)


@overload
def pull(
    name: str, items: int, *, size: int = 1, retries: int = 3, max_failed: int = 0, epoch: int = 0
) -> Pull[int]: ...
@overload
def pull(
    name: str, items: Sequence[T], *, size: int = 1, retries: int = 3, max_failed: int = 0, epoch: int = 0
) -> Pull[T]: ...
def pull(
    name: str,
    items: int | Sequence[Any],
    *,
    size: int = 1,
    retries: int = 3,
    max_failed: int = 0,
    epoch: int = 0,
) -> Pull[Any]:
    """Work on the elements of a set together with the job's other workers, until all are done.

    All workers must pass the same set: equal elements in the same order, and equal options. Each part is done
    at least once. A part whose worker dies is given to another one.

    Args:
        name: name of the set, in this job.
        items: a range, a list, or the number of elements.
        size: the most elements of a part.
        retries: how often a failed element is tried again, by other workers first.
        max_failed: how many elements may fail for good; with one more, the job fails.
        epoch: 0, 1, …: repeats the set after the previous epoch.

    Raises:
        ShardsError: an argument is invalid.
    """
    limits = {
        "size": (size, 1, LIMIT),
        "retries": (retries, 0, MAX_SHARD_RETRIES),
        "max_failed": (max_failed, 0, LIMIT - 1),
        "epoch": (epoch, 0, 2**31 - 1),
    }
    items = checked(name, items, limits)
    return Pull(SetDefinition(name, epoch, len(items), digest_of(items), retries, max_failed), items, size)


def checked(
    name: str, items: int | Sequence[Any], limits: Mapping[str, tuple[int, int, int]]
) -> Sequence[Any]:
    """Validate the arguments of a set, and return its elements.

    Args:
        limits: value, minimum and maximum of each option, by name.

    Raises:
        ShardsError: an argument is invalid.
    """
    if not isinstance(name, str):
        raise ShardsError(
            f"the name of a shard set is a text and comes first, and this is of type {type(name).__name__}: "
            "pull(name, items)"
        )
    if not _NAME.fullmatch(name):
        raise ShardsError(
            f"{name!r} is no name for a shard set: use up to 63 letters, digits, '.', '_' and '-', and "
            "begin and end with a letter or digit"
        )
    for option, (value, least, most) in limits.items():
        if not isinstance(value, int) or not least <= value <= most:
            raise ShardsError(
                f"shard set {name!r}: {option} is {value!r}, and must be from {least} to {most}"
            )
    if isinstance(items, int):
        if items < 0:
            raise ShardsError(f"shard set {name!r}: it cannot have {items} elements")
        items = range(items)
    try:
        number = len(items)
    except OverflowError:
        number = LIMIT
    except TypeError:
        raise ShardsError(
            f"shard set {name!r}: {type(items).__name__} has no length, and who pulls from a set must know "
            "how many elements it has: make a list of it"
        ) from None
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__getitem__"):
        raise ShardsError(
            f"shard set {name!r}: {type(items).__name__} is no list of elements: make a list of it, in the "
            "same order in all workers"
        )
    if number >= LIMIT:
        raise ShardsError(f"shard set {name!r} has too many elements: there may be 2^53 - 1 at most")
    return items


def digest_of(items: Sequence[Any]) -> str:
    """Return a digest of the elements in their order, which reveals that two workers' sets differ; "" if the
    elements' texts may differ between processes."""
    if isinstance(items, range):
        return f"{items.start}:{items.step}"
    found = hashlib.blake2b(digest_size=8)
    for item in items:
        if not isinstance(item, str | bytes | int | float | os.PathLike):
            return ""
        found.update(repr(item).encode())
        found.update(b"\n")
    return found.hexdigest()
