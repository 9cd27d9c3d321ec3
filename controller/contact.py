"""The start of our unbroken contact with the API server: no Lease counts as silent for longer than that.

When the server was away, or this process stood still, every Lease looks stale though every worker is well.
Only answers that took the server's storage to give count: without it a server carries no heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable

from controller import clock

DEFAULT_GAP_SECONDS = 5.0
"""A silence longer than this breaks the contact. The manager probes when nothing was answered for two
seconds, so that is two missed answers; and it is short against any sensible heartbeat time-out."""


class Contact:
    """Fed by `answered()`; read by `since`, in seconds of the same monotonic clock."""

    def __init__(
        self, *, gap_seconds: float = DEFAULT_GAP_SECONDS, now: Callable[[], float] = clock.monotonic
    ) -> None:
        self._gap_seconds = gap_seconds
        self._now = now
        self._since: float | None = None
        self._last_answer: float | None = None

    @property
    def last_answer(self) -> float | None:
        """When the server last answered; None before the first answer."""
        return self._last_answer

    @property
    def since(self) -> float:
        """The start of the unbroken contact; `now` while there is none."""
        now = self._now()
        if self._since is None or self._broken(now):
            return now
        return self._since

    def answered(self) -> None:
        """The API server answered just now."""
        now = self._now()
        if self._since is None or self._broken(now):
            self._since = now
        self._last_answer = now

    def _broken(self, now: float) -> bool:
        return self._last_answer is None or now - self._last_answer > self._gap_seconds
