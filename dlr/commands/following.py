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
SOON_SECONDS = 0.05
SOON_SHARE = 0.5
"""Likewise, of what is over in seconds."""
OUTAGE_LIMIT_SECONDS = 300.0
"""An API server's restart is sat out; one that stays away this long is not coming back by itself."""


def until_finished(
    fetch: Callable[[], Seen], is_finished: Callable[[Seen], bool], *, soon: bool = False
) -> Iterator[Seen]:
    """What `fetch` finds, again and again, up to and with the first that is finished.

    Args:
        soon: it is a matter of seconds, for which somebody waits: look as often as that takes.

    Raises:
        Unreachable: there was no API server for OUTAGE_LIMIT_SECONDS.
    """
    least, share = (SOON_SECONDS, SOON_SHARE) if soon else (INTERVAL_SECONDS, SHARE)
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
        looked_seconds = time.monotonic() - asked
        time.sleep(max(least, looked_seconds / share - looked_seconds))
