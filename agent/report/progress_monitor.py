"""Follows the progress of training, and has the reporter report changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from agent.monitor.progress import ProgressFiles, Snapshot, wall_clock
from agent.monitor.series import Chronicle
from agent.monitor.stepping import Figures, Stepping, with_round
from agent.report.report import ReportBody
from agent.report.reporter import Reporter
from crds.agent_report import Series, Slow, StepProgress, Usage
from crds.checkpoint_files import CheckpointTrouble

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.1
"""Intervals of the looks at the files: in general, and until the first step after a start. A look costs
microseconds; the reporter decides how often to report."""


@dataclass(frozen=True)
class StartProgress:
    """Steps of one start of the processes."""

    generation: int
    round: int
    stepping: Stepping = field(default_factory=Stepping)


class TrainingProgress:
    """Progress of one agent's training, over all starts of its processes. Thread-safe.

    Args:
        first: the agent's first report, with the figures of an earlier agent of the slot.
        usage: returns the newest figures of the Pod's usage, for the series.
    """

    def __init__(self, files: ProgressFiles, first: ReportBody, usage: Callable[[], Usage | None]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._chronicle = Chronicle(first.series or Series(), first.slow, usage)
        self._start = StartProgress(0, 0)
        """Current start of the processes."""
        trouble = first.checkpoint_trouble
        self._figures = Figures(None, first.rounds, trouble, first.series, first.slow)

    def figures(self) -> Figures:
        """Return the current figures. Every report has them, so that a failure comes with the last steps."""
        return self.now()[1]

    def now(self) -> tuple[StartProgress, Figures]:
        """Return the steps of the current start, and the current figures."""
        with self._lock:
            generation = self._files.generation
            snapshot = self._files.read()
            if generation == self._files.generation:  # no start in between
                self._take(generation, snapshot)
            return self._start, self._figures

    @property
    def generation(self) -> int:
        """Number of starts so far."""
        return self._files.generation

    def _take(self, generation: int, snapshot: Snapshot) -> None:
        if self._start.generation != generation:
            self._start = StartProgress(generation, self._files.start.round)
            self._figures = replace(self._figures, progress=None, checkpoint_trouble=snapshot.trouble)
            self._chronicle.begin(self._files.start)
        if self._start.stepping.counted != snapshot.counted:
            self._start = replace(self._start, stepping=Stepping(counted=snapshot.counted))
        start = self._start
        for rank, (first, newest) in snapshot.steps.items():
            start.stepping.observe(rank, first, newest)
        start.stepping.start_unknown = snapshot.start_unknown
        start.stepping.non_finite_step = snapshot.non_finite_step
        start.stepping.samples_per_step = snapshot.samples_per_step
        if snapshot.newest is None:
            return
        self._chronicle.look(
            snapshot.newest,
            snapshot.numbers,
            time.monotonic(),
            datetime.now(timezone.utc),
            busy=snapshot.busy,
        )
        checkpoint_step, checkpoint_time = self._checkpoint(snapshot)
        self._figures = Figures(
            progress=StepProgress(
                step=snapshot.newest.step,
                time=wall_clock(snapshot.newest.at),
                checkpoint_step=checkpoint_step,
                checkpoint_time=checkpoint_time,
                seconds_per_step=start.stepping.seconds_per_step(),
            ),
            rounds=with_round(self._figures.rounds, start.stepping.in_round(start.round)),
            checkpoint_trouble=snapshot.trouble,
            series=self._chronicle.series,
            slow=self._chronicle.slow,
        )

    def _checkpoint(self, snapshot: Snapshot) -> tuple[int | None, datetime | None]:
        """Return the highest saved step, and its time."""
        before, saved = self._figures.progress, snapshot.checkpoint
        step = before.checkpoint_step if before is not None else None
        if saved is not None and (step is None or saved.step > step):
            return saved.step, wall_clock(saved.at)
        return step, before.checkpoint_time if before is not None else None


class ProgressMonitor(threading.Thread):
    """Looks at the progress at intervals, and has the reporter report changes.

    Args:
        progress: the progress to report.
        checkpoint_is_awaited: returns whether a growing world waits for the next checkpoint.
        at_first_steps: called after the first step of each start.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        reporter: Reporter,
        checkpoint_is_awaited: Callable[[], bool] = lambda: False,
        at_first_steps: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(name="dlr-progress", daemon=True)
        self._progress = progress
        self._reporter = reporter
        self._checkpoint_is_awaited = checkpoint_is_awaited
        self._at_first_steps = at_first_steps
        self._stop_event = threading.Event()
        self._announced: tuple[int, StepProgress] | None = None
        """Generation and progress of the last request to the reporter."""
        self._was_awaited = False
        self._announced_trouble: CheckpointTrouble | None = None
        self._announced_news: _News = None, reporter.latest.slow

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        failed = False
        while not self._stop_event.wait(LOOK_SECONDS if failed else self._look_seconds()):
            try:
                self.look()
                failed = False
            except Exception:  # a defect must not silently end the reports of progress
                if not failed:
                    logger.exception("the progress of training is not read; trying again")
                failed = True

    def look(self) -> None:
        """Have the reporter report changes."""
        start, figures = self._progress.now()
        progress, is_awaited = figures.progress, self._checkpoint_is_awaited()
        if is_awaited and not self._was_awaited:
            self._reporter.hasten()  # an earlier checkpoint may wait there
        self._was_awaited = is_awaited
        trouble = figures.checkpoint_trouble.reason if figures.checkpoint_trouble else None
        if trouble is not self._announced_trouble:
            self._announced_trouble = trouble
            self._reporter.checkpoint()
        news = start.stepping.non_finite_step, figures.slow
        if news != self._announced_news:
            self._announced_news = news
            self._reporter.progress(within_seconds=0.0)
        announced = self._announced
        before = announced[1] if announced is not None and announced[0] == start.generation else None
        if progress is None or (before is not None and _steps(before) == _steps(progress)):
            return
        self._announced = start.generation, progress
        if before is None:
            self._at_first_steps()
        # The first step after a start is reported at once: it completes a restart. So is a checkpoint if a
        # growing world waits for it.
        if before is not None and before.checkpoint_step != progress.checkpoint_step:
            self._reporter.checkpoint(is_awaited=is_awaited)
        else:
            self._reporter.progress(within_seconds=0.0 if before is None else None)

    def _look_seconds(self) -> float:
        stepped = self._announced is not None and self._announced[0] == self._progress.generation
        return LOOK_SECONDS if stepped else FIRST_LOOK_SECONDS


_News = tuple[int | None, Slow | None]
"""First step of this start whose loss is not finite, and the slowness of training."""


def _steps(progress: StepProgress) -> tuple[int, int | None]:
    return progress.step, progress.checkpoint_step
