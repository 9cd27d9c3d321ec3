"""Short pauses of Python's cyclic garbage collector beside a large cache.

A full collection looks at every container there is, and nothing else runs meanwhile. But what a cache holds
is made of JSON and has no cycles. So what has survived a full collection is frozen: the next ones do not
look at it, and it still goes with its last reference. Once an hour all is looked at.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THAW_SECONDS = 3600.0
THRESHOLDS = (700, 5, 2)
"""Collections that are more frequent, and therefore smaller, than Python's (700, 10, 10)."""

_frozen_by_us = False


def keep_pauses_short(monotonic: Callable[[], float] = time.monotonic) -> None:
    """Keep collections short in the whole process, from now on."""
    global _frozen_by_us
    _frozen_by_us = True
    thawed_at = monotonic()

    def around_collections(phase: str, info: dict[str, int]) -> None:
        nonlocal thawed_at
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif monotonic() - thawed_at >= THAW_SECONDS:
            thawed_at = monotonic()
            gc.unfreeze()

    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(around_collections)


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause collections around a parser: what it makes has no cycles, and is not looked at right after
    either.

    A collection in the middle of a text of 1.5 MB takes three times as long as the parser, and one after it
    as long as the parser itself. What is young beside it goes first, so that no garbage is frozen with it.
    """
    gc.collect(0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _frozen_by_us:
            gc.freeze()
        if was_enabled:
            gc.enable()


def collect_lately_made() -> None:
    """What was made since this was called last, and now and then a little more.

    For work in slices: Python counts what is made less what goes. Where objects replace each other by the
    thousand, it would put its collection off until that takes a quarter of a second.
    """
    _, middle, old = gc.get_count()
    if _frozen_by_us and old > THRESHOLDS[2]:
        gc.collect()
    else:
        gc.collect(1 if middle > THRESHOLDS[1] else 0)
