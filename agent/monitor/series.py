"""A job's past as a bounded series: windows of a few steps, evenly thinned as the job grows. Pure.

A point has the step time of one window, and of each number the mean since the point before. So all step times
are of one scale, and no loss that was seen is left out of the curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from statistics import fmean, median
from typing import Any

from agent.facts.timestamps import rfc3339
from agent.monitor.pace import Window
from agent.monitor.stepping import StepReport
from crds.protocol import MAX_POINTS, SeriesPointStatus, SeriesStatus

WINDOW_SAMPLES = 5
"""Looks with a new step that make up a window: its median outlives two pauses."""
DIGITS = 6
"""That are significant."""

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Point:
    """One of `status.agent.series.points`."""

    step: int
    """The last that it is of."""
    time: datetime
    world_size: int
    seconds_per_step: float
    numbers: Numbers = field(default_factory=dict)

    def to_status(self) -> SeriesPointStatus:
        return {
            "step": self.step,
            "time": rfc3339(self.time),
            "worldSize": self.world_size,
            "secondsPerStep": _significant(self.seconds_per_step),
            "numbers": {name: _significant(value) for name, value in self.numbers.items()},
        }

    @classmethod
    def from_status(cls, status: Mapping[str, Any]) -> Point:
        time = datetime.fromisoformat(str(status["time"]).replace("Z", "+00:00")).astimezone(timezone.utc)
        figures = int(status["worldSize"]), float(status["secondsPerStep"])
        numbers = {str(name): float(value) for name, value in (status.get("numbers") or {}).items()}
        return cls(int(status["step"]), time, *figures, numbers)


@dataclass(frozen=True)
class Series:
    """`status.agent.series`: at most MAX_POINTS points, the oldest first, and the newest window."""

    every: int = 1
    """Count of windows for each point."""
    points: tuple[Point, ...] = ()
    latest: Point | None = None
    pending: tuple[Point, ...] = ()
    """Windows since the last point: as many as `every` make one."""

    def with_window(self, window: Point) -> Series:
        pending = (*self.pending, window)
        if len(pending) < self.every:
            return replace(self, latest=window, pending=pending)
        points = (*self.points, replace(window, numbers=mean_numbers([each.numbers for each in pending])))
        every = self.every
        if len(points) > MAX_POINTS:
            points, every = _thinned(points), 2 * every
        return Series(every, points, window)

    def to_status(self) -> SeriesStatus | None:
        """None if there is nothing to tell."""
        if self.latest is None:
            return None
        points = [point.to_status() for point in self.points]
        return {"every": self.every, "points": points, "latest": self.latest.to_status()}

    @classmethod
    def from_status(cls, status: Any) -> Series:
        """Empty where nothing is said, or not in this form."""
        try:
            points = tuple(map(Point.from_status, status["points"][-MAX_POINTS:]))
            latest = Point.from_status(status["latest"]) if status.get("latest") else None
            return cls(max(int(status["every"]), 1), points, latest)
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Each second point, counted from the newest, with the numbers of the one before it."""
    kept = []
    for place in range(len(points) - 1, -1, -2):
        numbers = [point.numbers for point in points[max(place - 1, 0) : place + 1]]
        kept.append(replace(points[place], numbers=mean_numbers(numbers)))
    return tuple(reversed(kept))


def mean_numbers(told: Sequence[Numbers]) -> dict[str, float]:
    """Return the mean of each number, over the reports that have it."""
    names = dict.fromkeys(name for numbers in told for name in numbers)
    return {name: fmean(each[name] for each in told if name in each) for name in names}


class Windows:
    """Makes windows of what is seen of one start's steps."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._is_warm = False
        self._last: StepReport | None = None
        self._since: StepReport | None = None
        self._paces: list[float] = []
        self._numbers: list[Numbers] = []

    def look(
        self, newest: StepReport, numbers: Numbers, clock: float, now: datetime, *, busy: bool
    ) -> tuple[Point, Window | None] | None:
        """What there is after this look; None unless it completes a window.

        The first is only for the series, and not to be judged: its steps compile, connect and fill caches.

        Args:
            newest: the newest step.
            clock: CLOCK_MONOTONIC at `now`.
            busy: no step is to be expected (`dlr.busy`): the time from this step to the next says nothing.
        """
        last = self._last
        if busy or last is None or newest.step < last.step:
            self._last = None if busy else newest
            return None
        if newest.step == last.step or newest.at <= last.at:
            return None
        self._last, self._since = newest, self._since or last
        self._paces.append((newest.at - last.at) / (newest.step - last.step))
        self._numbers.append(numbers)
        if len(self._paces) < WINDOW_SAMPLES:
            return None
        since, pace, told = self._since, median(self._paces), mean_numbers(self._numbers)
        self._since, self._paces, self._numbers = None, [], []
        point = Point(newest.step, _wall(newest.at, clock, now), self.world_size, pace, told)
        was_warm, self._is_warm = self._is_warm, True
        return point, Window(_wall(since.at, clock, now), since.step + 1, pace) if was_warm else None


def _wall(at: float, clock: float, now: datetime) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - (clock - at), timezone.utc)


def _significant(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
