"""What a computation costs, in calls: the same on a busy machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Count:
    """Calls of functions (of Python's and C's), and steps of generators."""

    calls: int = 0


@contextmanager
def counted() -> Iterator[Count]:
    """Counts what this thread does meanwhile; other threads do not count."""
    count = Count()

    def note(frame: Any, event: str, argument: Any) -> None:
        count.calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


def calls(function: Callable[[], object]) -> int:
    """How many calls a function takes."""
    with counted() as count:
        function()
    return count.calls


def growth(function: Callable[[int], object], few: int, many: int) -> float:
    """How many times as much CPU time it takes for many as for few: for work of C, in texts of big factors."""
    return cpu_seconds(lambda: function(many), 5) / cpu_seconds(lambda: function(few), 5)


class Searched(list[int]):
    """A list that counts how often it is searched from its beginning: in a loop over as many, that is a square."""

    times = 0

    def __contains__(self, value: object) -> bool:
        self.times += 1
        return super().__contains__(value)


def cpu_seconds(function: Callable[[], object], times: int = 3) -> float:
    """The CPU time of this thread that it takes, the least of several times; for big factors of growth only."""
    spent = []
    for _ in range(times):
        began = time.thread_time()
        function()
        spent.append(time.thread_time() - began)
    return min(spent)
