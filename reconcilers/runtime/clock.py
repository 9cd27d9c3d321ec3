"""The clock that is injected into reconcilers, so that tests control it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from controller import clock

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Clock:
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """The wall clock, for stored times."""
    monotonic: Callable[[], float] = clock.monotonic
    """The event loop's clock, for durations."""
