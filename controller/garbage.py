"""Short pauses of Python's cyclic garbage collector in a process with a large cache.

A full collection visits every container, and nothing else runs meanwhile. But a cache holds JSON, which
has no cycles. So objects that survive a full collection are frozen: later collections skip them, and they
are still freed with their last reference. Once an hour everything is visited.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THAW_SECONDS = 3600.0
THRESHOLDS = (700, 5, 2)
"""Thresholds for more frequent, and so smaller, collections than Python's (700, 10, 10)."""

_frozen_by_us = False


def keep_pauses_short(monotonic: Callable[[], float] = time.monotonic) -> None:
    """Keep collections short in the whole process from now on."""
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
    """Pause collections around a parser, whose results have no cycles, and are not visited right after
    either.

    A collection while a text of 1.5 MB is parsed takes three times as long as the parser, and one after it
    as long as the parser. Young objects are collected first, so that no garbage is frozen.
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
    """Collect the objects created since the last call, and sometimes older ones.

    For work in slices. Python counts allocations minus deallocations, so where objects replace each other
    by the thousand, it would delay its collection until that takes a quarter of a second.
    """
    _, middle, old = gc.get_count()
    if _frozen_by_us and old > THRESHOLDS[2]:
        gc.collect()
    else:
        gc.collect(1 if middle > THRESHOLDS[1] else 0)
