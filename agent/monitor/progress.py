"""How far training is, as scripts report it through `dlr` or DLRover's metrics file, or as it was counted.

Each training process gets a file of some 100 bytes (the progress record of crds/protocol.py), and the
agent's processes share one metrics file `{"step": …, "timestamp": …}` under the name that DLRover's
trainers look up. All of it lies in a directory of this agent, so two agents on one host never mix.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from agent.monitor.chronicle import Chronicle, Part
from agent.monitor.pace import Slowdown
from agent.monitor.series import Series
from agent.monitor.stepping import Figures, Progress, Stepping, StepReport, with_round
from agent.monitor.trainer_status import ENV_URL, TrainerStatusReceiver
from agent.report.reporter import Reporter
from crds.protocol import (
    BUSY_UNTIL,
    CHECKPOINT,
    CHECKPOINT_AT,
    COUNTED,
    COUNTED_AT,
    ENV_PROGRESS_FILE,
    FIRST_COUNTED,
    FIRST_COUNTED_AT,
    FIRST_STEP,
    FIRST_STEP_AT,
    MAX_TROUBLE,
    NON_FINITE,
    NUMBERS_FORMAT,
    PROGRESS_FORMAT,
    RESULT_SUFFIX,
    SAMPLES,
    START_UNKNOWN,
    STEP,
    STEP_AT,
    TROUBLE_SUFFIX,
    CheckpointTrouble,
    CheckpointTroubleStatus,
)

logger = logging.getLogger(__name__)

ENV_RUNTIME_METRICS = "RUNTIME_METRICS_PATH"

LOOK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.1
"""The interval between two looks at the files: in general, and until the first step after a start. A look
costs microseconds; the reporter decides how often to report."""
FIRST_COUNT_SECONDS = 10.0
"""So long a first step that was counted waits for the second, or for the script's own report of it."""

BESIDE = (TROUBLE_SUFFIX, RESULT_SUFFIX)
"""Endings of the files that a process may write beside its record."""

_RECORD = struct.Struct(f"{PROGRESS_FORMAT}{NUMBERS_FORMAT}")
_NUMBERS = struct.Struct(PROGRESS_FORMAT).size // 8


@dataclass(frozen=True)
class RankProgress:
    """How far one training process is, by what it has reported since it was started."""

    step: int | None = None
    """The newest step. A script that reports only checkpoints has the step of the last one."""
    last_report_at: float | None = None
    """When it last reported a step or a checkpoint (CLOCK_MONOTONIC)."""
    busy_until: float | None = None
    """Until when (CLOCK_MONOTONIC) it expects no step (`dlr.busy`); None if it is not busy."""
    reports_steps: bool = False
    """Whether it reports steps, and not just checkpoints."""


class ProgressFiles:
    """The progress files of one agent's training processes.

    Where the script is known to report steps itself, those that were counted say nothing.

    Args:
        told: whether the script is known to do so: an earlier agent of the slot said it.
        trouble: what an earlier agent of the slot said of checkpoints. It is so until the first process says
            that it works.
    """

    def __init__(self, *, told: bool = False, trouble: CheckpointTroubleStatus | None = None) -> None:
        self.told = told
        self.directory = Path(tempfile.mkdtemp(prefix="dlr_"))
        self._metrics = self.directory / "runtime_metrics.json"
        self._steps: list[Path] = []
        self._ahead: dict[int, int] = {}
        """By how many steps a process counts less than the others, by local rank."""
        self._trouble: dict[tuple[int, CheckpointTrouble], str] = {}
        """What was told last of each kind, by local rank: what processes have not told yet, those before them
        have."""
        if trouble is not None:
            self._trouble[0, trouble["reason"]] = trouble["message"]
        self._receiver: TrainerStatusReceiver | None = None
        self._since = time.time()
        self.generation = 0
        """How often processes have been started. The steps of one generation are compared with no other's."""

    def renew(self, local_world_size: int) -> list[dict[str, str]]:
        """Make fresh files for newly started processes.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: if they cannot be written.
        """
        beside = [path.with_name(path.name + suffix) for path in self._steps for suffix in BESIDE]
        for path in (*self._steps, *beside, self._metrics):
            path.unlink(
                missing_ok=True
            )  # a process that lingers goes on writing into a file that nobody reads
        self._steps = [self.directory / f"step.{rank}" for rank in range(local_world_size)]
        self._ahead = {}
        for path in self._steps:
            path.write_bytes(bytes(_RECORD.size))
        self._since = time.time()
        self.generation += 1
        shared = {ENV_RUNTIME_METRICS: str(self._shared_metrics()), **self._posts()}
        return [{ENV_PROGRESS_FILE: str(path), **shared} for path in self._steps]

    @property
    def records(self) -> Sequence[Path]:
        """The progress records of the processes that were started last, by local rank."""
        return self._steps

    def read(self) -> Snapshot:
        """Read what the processes have reported since they were started."""
        records = {rank: _read_record(path) for rank, path in enumerate(self._steps)}
        shared = self._read_metrics()
        saved = {rank: r.checkpoint for rank, r in records.items() if r.checkpoint is not None}
        told = {rank: (r.first or r.step, r.step) for rank, r in records.items() if r.step is not None}
        if shared is not None:
            told[len(records)] = shared, shared
        self.told = self.told or bool(told)
        began = {rank: r.counted[0].step for rank, r in records.items() if r.counted}
        self._ahead = {rank: max(began.values()) - step for rank, step in began.items()}
        counted = {
            rank: _later(r.counted, self._ahead[rank])
            for rank, r in records.items()
            if r.counted and _believed(r.counted) and not self.told
        }
        return Snapshot(
            steps=told or counted or {rank: (checkpoint, checkpoint) for rank, checkpoint in saved.items()},
            checkpoint_step=max((checkpoint.step for checkpoint in saved.values()), default=None),
            counted=bool(counted),
            start_unknown=bool(counted)
            and all(records[rank].start_unknown for rank, ahead in self._ahead.items() if ahead == 0),
            non_finite_step=min(
                (r.non_finite_step for r in records.values() if r.non_finite_step is not None), default=None
            ),
            trouble=self._read_trouble(),
            samples_per_step=max((r.samples_per_step for r in records.values()), default=0) or None,
            numbers=next((r.numbers for r in records.values() if r.numbers), {}),
            busy=any(r.busy_until is not None and r.busy_until > time.monotonic() for r in records.values()),
        )

    def read_rank(self, local_rank: int) -> RankProgress:
        """Read what one process has reported. It can be read after its end too, until the next start.

        The step in DLRover's metrics file, which the processes share, counts for one that reports none
        itself; what was counted, where the script is not known to report any.
        """
        steps = self._steps  # renewed as a whole by another thread
        record = _read_record(steps[local_rank]) if local_rank < len(steps) else _Record()
        step = record.step or self._read_metrics()
        if step is None and record.counted and _believed(record.counted) and not self.told:
            _, step = _later(record.counted, self._ahead.get(local_rank, 0))
        newest = step or record.checkpoint
        if newest is None:
            return RankProgress(busy_until=record.busy_until)
        at = max(newest.at, record.checkpoint.at) if record.checkpoint else newest.at
        return RankProgress(newest.step, at, record.busy_until, reports_steps=step is not None)

    @property
    def marker(self) -> str:
        """How a variable begins that this agent's training processes have, and no other process."""
        return f"{ENV_PROGRESS_FILE}={self.directory}/"

    def remove(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _posts(self) -> Mapping[str, str]:
        """Where processes may post their step to, unless the user has named another place."""
        if ENV_URL in os.environ:
            return {}
        if self._receiver is None:
            self._receiver = TrainerStatusReceiver(self._note_step, self.directory)
        return self._receiver.environment

    def _note_step(self, step: int) -> None:
        """Write a step that was posted where DLRover's trainers write theirs: the processes share it."""
        path = self._shared_metrics()
        scratch = path.with_name(f"{path.name}.new")
        try:
            scratch.write_text(json.dumps({"step": step, "timestamp": time.time()}))
            scratch.replace(path)
        except OSError as error:
            logger.debug("a posted step is lost: %s", error)

    def _shared_metrics(self) -> Path:
        return Path(os.environ.get(ENV_RUNTIME_METRICS) or self._metrics)

    def _read_trouble(self) -> CheckpointTroubleStatus | None:
        """What does not work with checkpoints, of the first process that tells of any."""
        for rank, path in enumerate(self._steps):
            try:
                told = json.loads(_trouble_of(path).read_bytes())
            except (OSError, ValueError):
                continue  # as with most: there was nothing to tell
            for kind in CheckpointTrouble:
                if isinstance(told, dict) and kind in told:
                    self._trouble[rank, kind] = str(told[kind])
        for rank in range(len(self._steps)):
            for kind in CheckpointTrouble:
                if message := self._trouble.get((rank, kind)):
                    return {"reason": kind, "message": message[:MAX_TROUBLE]}
        return None

    def _read_metrics(self) -> StepReport | None:
        try:
            metrics = json.loads(self._shared_metrics().read_text())
            at, step = float(metrics["timestamp"]), int(metrics["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if at < self._since or step < 0:
            return None
        return StepReport(time.monotonic() - (time.time() - at), step)


@dataclass(frozen=True)
class Snapshot:
    """What all the processes of one start have reported."""

    steps: dict[int, tuple[StepReport, StepReport]]
    """The first and the newest report, by local rank. The file that the processes share counts as one rank
    more, and a script that reports nothing but checkpoints is at least as far as these."""
    checkpoint_step: int | None = None
    """The highest step of a checkpoint."""
    counted: bool = False
    """The steps were counted: the script reports none. All processes of a start begin with the same step, and
    the highest number is right: some scripts load on rank 0 alone."""
    start_unknown: bool = False
    """Nobody knows which step the count began with."""
    non_finite_step: int | None = None
    """The first step whose loss a process reported to be NaN or infinite."""
    trouble: CheckpointTroubleStatus | None = None
    samples_per_step: int | None = None
    """Over all ranks, as a process has reported it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """What a process told beside its newest step: the first one that told anything."""
    busy: bool = False
    """A process expects no step now (`dlr.busy`)."""

    @property
    def newest(self) -> StepReport | None:
        return max((newest for _, newest in self.steps.values()), default=None)


@dataclass(frozen=True)
class _Record:
    """What one process's file says."""

    step: StepReport | None = None
    checkpoint: StepReport | None = None
    busy_until: float | None = None
    first: StepReport | None = None
    counted: tuple[StepReport, StepReport] | None = None
    """The first and the newest step that were counted."""
    start_unknown: bool = False
    non_finite_step: int | None = None
    samples_per_step: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def _trouble_of(record: Path) -> Path:
    return record.with_name(f"{record.name}{TROUBLE_SUFFIX}")


def _read_record(path: Path) -> _Record:
    try:
        words = _RECORD.unpack(path.read_bytes())
    except (OSError, struct.error):
        return _Record()
    first, newest = (
        _told(words[FIRST_COUNTED], words[FIRST_COUNTED_AT]),
        _told(words[COUNTED], words[COUNTED_AT]),
    )
    return _Record(
        _told(words[STEP], words[STEP_AT]),
        _told(words[CHECKPOINT], words[CHECKPOINT_AT]),
        words[BUSY_UNTIL] or None,
        _told(words[FIRST_STEP], words[FIRST_STEP_AT]),
        (first, newest) if first and newest else None,
        start_unknown=bool(words[START_UNKNOWN]),
        non_finite_step=words[NON_FINITE] - 1 if words[NON_FINITE] > 0 else None,
        samples_per_step=max(words[SAMPLES], 0),
        numbers=dict(_numbers(words[_NUMBERS:])),
    )


def _numbers(told: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """The name and value of each; a script may write anything there."""
    for value, name in zip(told[::2], told[1::2], strict=True):
        if (text := name.rstrip(b"\0").decode(errors="replace")) and math.isfinite(value):
            yield text, value


def _believed(counted: tuple[StepReport, StepReport]) -> bool:
    """Whether a script that reports its steps itself would have reported the first by now."""
    first, newest = counted
    return newest.step != first.step or time.monotonic() - first.at >= FIRST_COUNT_SECONDS


def _later(counted: tuple[StepReport, StepReport], ahead: int) -> tuple[StepReport, StepReport]:
    """As a process counts that began by so many steps later."""
    first, newest = counted
    return StepReport(first.at, first.step + ahead), StepReport(newest.at, newest.step + ahead)


def _told(step: int, at: float) -> StepReport | None:
    return None if at == 0.0 or step < 0 else StepReport(at, step)


def _wall_clock(monotonic: float) -> datetime:
    return datetime.fromtimestamp(time.time() - (time.monotonic() - monotonic), timezone.utc)


class ProgressMonitor(threading.Thread):
    """Looks at the files now and then, and has the reporter say what has changed.

    The reporter asks for the figures with every report, so a failure is reported with the last ones.

    Args:
        part: what this agent is in the world whose processes were started last.
    """

    def __init__(self, files: ProgressFiles, reporter: Reporter, part: Callable[[], Part] = Part) -> None:
        super().__init__(name="dlr-progress", daemon=True)
        self._files = files
        self._reporter = reporter
        self._part = part
        latest = reporter.latest
        self._chronicle = Chronicle(latest.series or Series(), latest.slow)
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._start = _Start(0, 0)
        """The processes that run, or ran last."""
        self._figures = Figures(
            rounds=latest.rounds, trouble=latest.trouble, series=latest.series, slow=latest.slow
        )
        self._announced: tuple[int, Progress] | None = None
        """The generation, and the progress, that the reporter was last asked to report."""
        self._announced_trouble: CheckpointTrouble | None = None
        self._announced_news: _News = None, latest.slow
        reporter.follow(self.figures)

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        while not self._stop_event.wait(self._look_seconds()):
            self.look()

    def figures(self) -> Figures:
        """Return how far training is now."""
        return self._now()[1]

    def look(self) -> None:
        """Have the reporter say what is new."""
        start, figures = self._now()
        progress = figures.progress
        trouble = figures.trouble["reason"] if figures.trouble else None
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
        # The first step after a start is news: it says that a restart is over. So is a checkpoint, since a
        # world that is to grow may wait for it.
        if before is not None and before.checkpoint_step != progress.checkpoint_step:
            self._reporter.checkpoint()
        else:
            self._reporter.progress(within_seconds=0.0 if before is None else None)

    def _now(self) -> tuple[_Start, Figures]:
        with self._lock:
            generation = self._files.generation
            snapshot = self._files.read()
            if generation == self._files.generation:  # no start came in between
                self._take(generation, snapshot)
            return self._start, self._figures

    def _take(self, generation: int, snapshot: Snapshot) -> None:
        if self._start.generation != generation:
            self._start = _Start(generation, self._reporter.latest.observed_round)
            self._figures = replace(self._figures, progress=None, trouble=snapshot.trouble)
            self._chronicle.begin(self._part())
        if self._start.stepping.counted != snapshot.counted:
            self._start = _Start(generation, self._start.round, Stepping(counted=snapshot.counted))
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
        before = self._figures.progress
        saved = [snapshot.checkpoint_step, before.checkpoint_step if before else None]
        self._figures = Figures(
            progress=Progress(
                step=snapshot.newest.step,
                time=_wall_clock(snapshot.newest.at),
                checkpoint_step=max((step for step in saved if step is not None), default=None),
                seconds_per_step=start.stepping.seconds_per_step(),
            ),
            rounds=with_round(self._figures.rounds, start.stepping.in_round(start.round)),
            trouble=snapshot.trouble,
            series=self._chronicle.series,
            slow=self._chronicle.slow,
        )

    def _look_seconds(self) -> float:
        stepped = self._announced is not None and self._announced[0] == self._files.generation
        return LOOK_SECONDS if stepped else FIRST_LOOK_SECONDS


@dataclass(frozen=True)
class _Start:
    """One start of the processes."""

    generation: int
    round: int
    """The round that was reported before they were started."""
    stepping: Stepping = field(default_factory=Stepping)


_News = tuple[int | None, Slowdown | None]
"""The first step of this start with a loss that is no number, and what is told of the pace."""


def _steps(progress: Progress) -> tuple[int, int | None]:
    return progress.step, progress.checkpoint_step
