"""Times at which an agent left one round and arrived in the next, for the duration of a recovery."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from crds.agent_report import RoundArrival


@dataclass(frozen=True)
class GroupTimes:
    """Times at which the processes of a start formed their process group, by the node's clock."""

    imported: datetime
    """Time at which the last of them began."""
    initialized: datetime
    """Time at which the last of them finished."""


class Arrival:
    """One agent's times from round to round, by the node's clock. Thread-safe.

    Args:
        read_group: returns the times at which the current processes formed their group; None until all have.
    """

    def __init__(self, read_group: Callable[[], GroupTimes | None] = lambda: None) -> None:
        self._read_group = read_group
        self._lock = threading.Lock()
        self._seen: datetime | None = None
        self._joined: datetime | None = None
        self._start: RoundArrival | None = None

    def note_end(self, now: datetime) -> None:
        """Note that the current round is over."""
        with self._lock:
            self._seen = self._seen or now

    def note_world(self, now: datetime) -> None:
        """Note that no process runs here any more, and that there is a world to join."""
        with self._lock:
            self._seen = self._seen or now
            self._joined = now

    def note_start(self, round_: int, now: datetime) -> None:
        """Note that the processes of a round were started."""
        with self._lock:
            self._start = RoundArrival(round_, self._seen or now, self._joined or now, now)
            self._seen = self._joined = None

    def to_status(self) -> RoundArrival | None:
        """Return the times of the newest start; None before the first."""
        with self._lock:
            start = self._start
            # Once there is a world to join, `read_group` would return the times of its processes.
            if start is not None and start.initialized is None and self._joined is None:
                group = self._read_group()
                if group is not None:
                    self._start = start = replace(
                        start, imported=group.imported, initialized=group.initialized
                    )
            return start
