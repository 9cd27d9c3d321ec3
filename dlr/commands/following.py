"""Looking at something in the cluster until it is finished, gently and through outages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dlr.commands.api import Unreachable
from dlr.commands.waiting import untold

Seen = TypeVar("Seen")

INTERVAL_SECONDS = 1.0
SHARE = 0.2
"""Of its time following spends at most this much in asking: a large thing is looked at less often."""
OUTAGE_LIMIT_SECONDS = 300.0
"""An API server's restart is sat out; one that stays away this long is not coming back by itself."""


def until_finished(fetch: Callable[[], Seen], is_finished: Callable[[Seen], bool]) -> Iterator[Seen]:
    """What `fetch` finds, again and again, up to and with the first that is finished.

    Raises:
        Unreachable: there was no API server for OUTAGE_LIMIT_SECONDS.
    """
    answered = time.monotonic()
    while True:
        asked = time.monotonic()
        try:
            with untold():
                seen = fetch()
        except Unreachable as outage:
            if time.monotonic() - answered > OUTAGE_LIMIT_SECONDS:
                raise
            print(f"dlr: {outage} Trying again.", file=sys.stderr)
        else:
            answered = asked
            yield seen
            if is_finished(seen):
                return
        time.sleep(max(INTERVAL_SECONDS, (time.monotonic() - asked) / SHARE))
