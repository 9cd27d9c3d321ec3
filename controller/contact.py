"""Start of the unbroken contact with the API server: no Lease counts as silent for longer than that.

After an outage of the server, or a pause of this process, every Lease looks stale although every worker is
well. Only answers for which the server needed its storage count: without it, a server stores no heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable

from controller import clock

DEFAULT_GAP_SECONDS = 5.0
"""Silence that breaks the contact. The manager probes after two seconds without an answer, so this is two
missed answers, and short compared to any sensible heartbeat time-out."""


class Contact:
    """Contact with the API server: `answered()` updates it, `since` reads it, in seconds of one monotonic
    clock."""

    def __init__(
        self, *, gap_seconds: float = DEFAULT_GAP_SECONDS, now: Callable[[], float] = clock.monotonic
    ) -> None:
        self._gap_seconds = gap_seconds
        self._now = now
        self._since: float | None = None
        self._last_answer: float | None = None

    @property
    def last_answer(self) -> float | None:
        """Time of the server's last answer; None before the first."""
        return self._last_answer

    @property
    def since(self) -> float:
        """Start of the unbroken contact; the current time while there is none."""
        now = self._now()
        if self._since is None or self._broken(now):
            return now
        return self._since

    def answered(self) -> None:
        """Note that the API server answered just now."""
        now = self._now()
        if self._since is None or self._broken(now):
            self._since = now
        self._last_answer = now

    def _broken(self, now: float) -> bool:
        return self._last_answer is None or now - self._last_answer > self._gap_seconds
