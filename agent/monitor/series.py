"""A job's past as a bounded series: windows of a few steps, evenly thinned as the job grows. Pure.

A point has the step time of one window, and the mean of each number since the point before. So all step times
are comparable, and the curve of the loss omits no value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import fmean, median

from agent.monitor.pace import ProcessPace, Window
from agent.monitor.stepping import ProcessStart, StepReport
from crds.agent_report import MAX_POINTS, Series, SeriesPoint, Slow, Usage

WINDOW_SAMPLES = 5
"""Number of looks with a new step in a window; their median is robust against two pauses."""
IN_SERIES = ("cpuCores", "memoryBytes", "gpuShare", "gpuMemoryBytes")
"""Figures of `status.agent.usage` in the series."""

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class SeriesDraft:
    """The series, and the windows since its last point; `every` windows make a point."""

    series: Series
    pending: tuple[SeriesPoint, ...] = ()

    def with_window(self, window: SeriesPoint) -> SeriesDraft:
        every, points, pending = self.series.every, self.series.points, (*self.pending, window)
        if len(pending) < every:
            return SeriesDraft(replace(self.series, latest=window), pending)
        points = (*points, _mean_of(pending))
        if len(points) > MAX_POINTS:
            points, every = _thinned(points), 2 * every
        return SeriesDraft(Series(every, points, window))


def _thinned(points: Sequence[SeriesPoint]) -> tuple[SeriesPoint, ...]:
    """Return every second point, counted from the newest, merged with the one before it."""
    places = range(len(points) - 1, -1, -2)
    return tuple(reversed([_mean_of(points[max(place - 1, 0) : place + 1]) for place in places]))


def _mean_of(points: Sequence[SeriesPoint]) -> SeriesPoint:
    """Return the last of the points, with the mean numbers and usage of all."""
    numbers = mean_numbers([each.numbers for each in points])
    return replace(points[-1], numbers=numbers, usage=mean_numbers([each.usage for each in points]))


def amounts_of(usage: Usage | None) -> dict[str, float]:
    """Return a Pod's usage for a point of the series, rounded to three digits."""
    wire = {} if usage is None else usage.to_wire()
    return {name: float(f"{wire[name]:.3g}") for name in IN_SERIES if wire.get(name) is not None}


def mean_numbers(reports: Sequence[Numbers]) -> dict[str, float]:
    """Return the mean of each number, over the reports that have it."""
    names = dict.fromkeys(name for numbers in reports for name in numbers)
    return {name: fmean(each[name] for each in reports if name in each) for name in names}


class Windows:
    """Divides the steps of one start into windows."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._is_warm = False
        self._last: StepReport | None = None
        self._since: StepReport | None = None
        self._paces: list[float] = []
        self._numbers: list[Numbers] = []

    def look(
        self, newest: StepReport, numbers: Numbers, clock: float, now: datetime, *, busy: bool
    ) -> tuple[SeriesPoint, Window | None] | None:
        """Return a new point of the series, with its window; None unless this look completes a window.

        The first window is None, and not judged, since its steps compile, connect and fill caches.

        Args:
            newest: the newest step.
            clock: CLOCK_MONOTONIC at `now`.
            busy: no step is expected (`dlr.busy`), so the time from this step to the next is ignored.
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
        since, pace, means = self._since, median(self._paces), mean_numbers(self._numbers)
        self._since, self._paces, self._numbers = None, [], []
        point = SeriesPoint(newest.step, _wall(newest.at, clock, now), self.world_size, pace, means)
        was_warm, self._is_warm = self._is_warm, True
        return point, Window(_wall(since.at, clock, now), since.step + 1, pace) if was_warm else None


def _wall(at: float, clock: float, now: datetime) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - (clock - at), timezone.utc)


class Chronicle:
    """Series and pace of the job, over all starts of this agent's processes. Not thread-safe.

    Args:
        series: series in the report of an earlier agent of the slot.
        slow: slowness in that report.
        usage: returns the newest figures of this Pod's usage.
    """

    def __init__(self, series: Series, slow: Slow | None, usage: Callable[[], Usage | None]) -> None:
        self._usage = usage
        self._history = SeriesDraft(series)
        usual = [point for point in series.points if slow is None or point.time < slow.since]
        past = ((point.world_size, point.seconds_per_step) for point in usual)
        self._pace = ProcessPace(slow, past, series.latest.world_size if series.latest else 0)
        self._start: ProcessStart | None = None
        self._windows = Windows(0)

    def begin(self, start: ProcessStart) -> None:
        """Note that new processes have been started."""
        self._start = start
        self._windows = Windows(start.world_size)
        self._pace.begin(start.world_size)

    def look(self, newest: StepReport, numbers: Numbers, clock: float, now: datetime, *, busy: bool) -> None:
        """Add the newest step; see `Windows.look`."""
        found = self._windows.look(newest, numbers, clock, now, busy=busy)
        if found is not None:
            point, window = found
            self._history = self._history.with_window(replace(point, usage=amounts_of(self._usage())))
            if window is not None:
                self._pace.add(window)

    @property
    def series(self) -> Series | None:
        """The series; None if it has no points, or another agent reports it."""
        series = self._history.series
        return series if self._leads and series.latest is not None else None

    @property
    def slow(self) -> Slow | None:
        """Slowness of the job; None if it is not slow, or another agent reports it."""
        return self._pace.slow if self._leads else None

    @property
    def _leads(self) -> bool:
        """Whether this agent reports for the job. Before its first world it repeats the earlier report."""
        return self._start is None or self._start.leads
