"""What one agent keeps of its job's past: the series for people, and whether training has become slower.

Every agent keeps its own, since each may become rank 0's; that one alone tells it.
"""

from __future__ import annotations

from datetime import datetime

from agent.monitor.pace import Pace
from agent.monitor.series import History, Numbers, Windows
from agent.monitor.stepping import Start, StepReport
from crds.agent_report import Series, Slow


class Chronicle:
    """It is not thread-safe.

    Args:
        series: as an earlier agent of the slot told it.
        slow: likewise.
    """

    def __init__(self, series: Series, slow: Slow | None) -> None:
        self._history = History(series)
        usual = [point for point in series.points if slow is None or point.time < slow.since]
        past = ((point.world_size, point.seconds_per_step) for point in usual)
        self._pace = Pace(slow, past, series.latest.world_size if series.latest else 0)
        self._start: Start | None = None
        self._windows = Windows(0)

    def begin(self, start: Start) -> None:
        """Take note that new processes have been started."""
        self._start = start
        self._windows = Windows(start.world_size)
        self._pace.begin(start.world_size)

    def look(self, newest: StepReport, numbers: Numbers, clock: float, now: datetime, *, busy: bool) -> None:
        """Look as `Windows.look` does."""
        found = self._windows.look(newest, numbers, clock, now, busy=busy)
        if found is not None:
            point, window = found
            self._history = self._history.with_window(point)
            if window is not None:
                self._pace.add(window)

    @property
    def series(self) -> Series | None:
        """None if there is nothing to tell, or it is another's to tell."""
        series = self._history.series
        return series if self._speaks and series.latest is not None else None

    @property
    def slow(self) -> Slow | None:
        """Likewise."""
        return self._pace.slow if self._speaks else None

    @property
    def _speaks(self) -> bool:
        """Before its first world, what was told stays."""
        return self._start is None or self._start.leads
