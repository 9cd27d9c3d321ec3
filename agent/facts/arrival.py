"""When an agent left one round and was in the next: the parts of a recovery that it alone sees."""

from __future__ import annotations

from datetime import datetime

from crds.agent_report import RoundArrival


class Arrival:
    """The way of one agent from round to round. Times are of the node's clock.

    Written by the agent's main thread; `to_status` is for any.
    """

    def __init__(self) -> None:
        self._seen: datetime | None = None
        self._joined: datetime | None = None
        self._start: RoundArrival | None = None

    def note_end(self, now: datetime) -> None:
        """Take note that the round which runs is over."""
        self._seen = self._seen or now

    def note_world(self, now: datetime) -> None:
        """Take note that nothing runs here any more, and that there is a world to join."""
        self._seen = self._seen or now
        self._joined = now

    def note_start(self, round_: int, now: datetime) -> None:
        """Take note that the processes of a round were started."""
        self._start = RoundArrival(round_, self._seen or now, self._joined or now, now)
        self._seen = self._joined = None

    def to_status(self) -> RoundArrival | None:
        """Return the newest start; None before the first."""
        return self._start
