"""What one agent keeps of its job's past: the series for people, and whether training has become slower.

Every agent keeps its own, since each may become rank 0's; that one alone tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agent.monitor.pace import Pace
from agent.monitor.series import History, Numbers, Windows
from agent.monitor.stepping import StepReport
from crds.agent_report import Series, Slow


@dataclass(frozen=True)
class Part:
    """What this agent is in the world whose processes it runs."""

    world_size: int = 1
    leads: bool = True
    """It is rank 0's, and speaks for the job."""


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
        self._part: Part | None = None
        self._windows = Windows(0)

    def begin(self, part: Part) -> None:
        """New processes have been started."""
        self._part = part
        self._windows = Windows(part.world_size)
        self._pace.begin(part.world_size)

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
        return self._part is None or self._part.leads
