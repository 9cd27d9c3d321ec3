"""What a computation costs, in calls: the same on a busy machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


def calls(function: Callable[[], object]) -> int:
    """How many calls of functions (of Python's and C's), and steps of generators, it takes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


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
