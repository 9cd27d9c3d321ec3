"""Looking at something in the cluster until it is finished, gently and through outages."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from controller.errors import Unavailable
from controller.wording import printable
from dlr.kube.waiting import untold

Seen = TypeVar("Seen")

INTERVAL_SECONDS = 1.0
SHARE = 0.2
"""Of its time following spends at most this much in asking: a large thing is looked at less often."""
FIRST_SECONDS, GROWTH = 0.05, 1.5
"""Of the waits for an answer that may be there at once; they grow to INTERVAL_SECONDS."""
WAITING_SHARE = 0.5
"""As SHARE, while somebody waits for it."""
OUTAGE_LIMIT_SECONDS = 300.0
"""An API server's restart is sat out; one that stays away this long is not coming back by itself."""


def until_finished(
    fetch: Callable[[], Seen], is_finished: Callable[[Seen], bool], *, within_seconds: float | None = None
) -> Iterator[Seen]:
    """What `fetch` finds, again and again, up to and with the first that is finished.

    Args:
        within_seconds: it is an answer that somebody waits for: looks are closer to each other, and the last
            begins after so long. What it finds may be unfinished.

    Raises:
        Unavailable: there was no API server for OUTAGE_LIMIT_SECONDS, or at the end of what was given.
    """
    answered = time.monotonic()
    waits = within_seconds is not None
    last_look = answered + within_seconds if within_seconds is not None else math.inf
    pause, share = (FIRST_SECONDS, WAITING_SHARE) if waits else (INTERVAL_SECONDS, SHARE)
    while True:
        asked = time.monotonic()
        is_late = asked >= last_look
        try:
            with untold():
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
