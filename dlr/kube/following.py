"""Polls objects in the cluster until they are finished, at a low load, and through outages."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from controller.errors import Unavailable
from controller.wording import printable
from dlr.kube.waiting import without_display

Seen = TypeVar("Seen")

INTERVAL_SECONDS = 1.0
SHARE = 0.2
"""Largest share of the time that requests take: slow answers are requested less often."""
FIRST_SECONDS, GROWTH = 0.05, 1.5
"""First pause with a deadline, and factor of its growth up to INTERVAL_SECONDS."""
WAITING_SHARE = 0.5
"""SHARE with a deadline."""
OUTAGE_LIMIT_SECONDS = 300.0
"""Longest outage of the API server to wait for, such as a restart."""


def until_finished(
    fetch: Callable[[], Seen], is_finished: Callable[[Seen], bool], *, within_seconds: float | None = None
) -> Iterator[Seen]:
    """Yield the results of `fetch`, up to and including the first that is finished.

    Args:
        within_seconds: deadline for a caller that waits for an answer. The pauses are shorter then; the last
            call begins at the deadline, and its result may be unfinished.

    Raises:
        Unavailable: there was no API server for OUTAGE_LIMIT_SECONDS, or at the deadline.
    """
    answered = time.monotonic()
    waits = within_seconds is not None
    last_look = answered + within_seconds if within_seconds is not None else math.inf
    pause, share = (FIRST_SECONDS, WAITING_SHARE) if waits else (INTERVAL_SECONDS, SHARE)
    while True:
        asked = time.monotonic()
        is_late = asked >= last_look
        try:
            with without_display():
                seen = fetch()
        except Unavailable as outage:
            if is_late or asked - answered > OUTAGE_LIMIT_SECONDS:
                raise
            print(f"dlr: {printable(str(outage))} Trying again.", file=sys.stderr)
            pause = max(INTERVAL_SECONDS, outage.retry_after_seconds)
        else:
            answered = asked
            yield seen
            if is_late or is_finished(seen):
                return
        looked = time.monotonic()
        wait_seconds = max(pause, (looked - asked) * (1 / share - 1))
        time.sleep(max(0.0, min(wait_seconds, last_look - looked)))
        pause = min(pause * GROWTH, INTERVAL_SECONDS)
