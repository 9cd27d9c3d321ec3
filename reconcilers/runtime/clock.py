"""Time, as the reconcilers get it: injected, so that tests own it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from controller import clock

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    now: Callable[[], datetime] = _utc_now
    """The wall clock, for times that are written down."""
    monotonic: Callable[[], float] = clock.monotonic
    """The clock of durations, the event loop's."""
