"""When an agent left one round and was in the next: the parts of a recovery that it alone sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from crds.agent_report import RoundArrival


@dataclass(frozen=True)
class GroupTimes:
    """When the processes of a start formed their process group, by the node's clock."""

    imported: datetime
    """When the last of them began to."""
    initialized: datetime
    """When the last of them was through."""


class Arrival:
    """The way of one agent from round to round. Times are of the node's clock. Thread-safe.

    Args:
        read_group: returns when the processes that run formed their process group; None until all have.
    """

    def __init__(self, read_group: Callable[[], GroupTimes | None] = lambda: None) -> None:
        self._read_group = read_group
        self._lock = threading.Lock()
        self._seen: datetime | None = None
        self._joined: datetime | None = None
        self._start: RoundArrival | None = None

    def note_end(self, now: datetime) -> None:
        """Take note that the round which runs is over."""
        with self._lock:
            self._seen = self._seen or now

    def note_world(self, now: datetime) -> None:
        """Take note that nothing runs here any more, and that there is a world to join."""
        with self._lock:
            self._seen = self._seen or now
            self._joined = now

    def note_start(self, round_: int, now: datetime) -> None:
        """Take note that the processes of a round were started."""
        with self._lock:
            self._start = RoundArrival(round_, self._seen or now, self._joined or now, now)
            self._seen = self._joined = None

    def to_status(self) -> RoundArrival | None:
        """Return the newest start; None before the first."""
        with self._lock:
            start = self._start
            # With a world to join, what is read is of the processes of its round.
            if start is not None and start.initialized is None and self._joined is None:
                group = self._read_group()
                if group is not None:
                    self._start = start = replace(
                        start, imported=group.imported, initialized=group.initialized
                    )
            return start
