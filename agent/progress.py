"""How far training is: what the scripts say through `dlr`, or the step through DLRover's metrics file.

Each training process gets a 64-byte file of its own (`DLR_PROGRESS_FILE`, see dlr/progress.py), and the
agent's processes share one metrics file `{"step": …, "timestamp": …}` under the name that DLRover's
trainers look up. All of it lies in a directory of this agent, so two agents on one host never mix.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from agent.report import Reporter
from agent.stepping import Figures, Progress, Stepping, Told, with_round

ENV_PROGRESS_FILE = "DLR_PROGRESS_FILE"
ENV_RUNTIME_METRICS = "RUNTIME_METRICS_PATH"

LOOK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 0.1
"""Between looks at the files: in general, and until the first step after a start. It costs microseconds; how
often to tell is the reporter's choice."""

_RECORD = struct.Struct("qdqdqdqd")
"""A step, and when it was told (CLOCK_MONOTONIC, 0 if never); the last checkpoint's step, and when; 0, and
until when the process is busy with what is no step (0 if it is not); the first step, and when. An older `dlr`
writes only the front."""


@dataclass(frozen=True)
class RankProgress:
    """How far one training process is, by what it told since it was started."""

    step: int | None = None
    """The newest; of a script that tells only its checkpoints, the last of these."""
    last_told: float | None = None
    """When it last told a step or a checkpoint (CLOCK_MONOTONIC)."""
    busy_until: float | None = None
    """Until then (CLOCK_MONOTONIC) it expects no step (`dlr.busy`); None if it is not busy."""
    tells_steps: bool = False
    """Not just checkpoints."""


class ProgressFiles:
    """The files of one agent's training processes."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="dlr_"))
        self._metrics = self._directory / "runtime_metrics.json"
        self._steps: list[Path] = []
        self._since = time.time()
        self.generation = 0
        """How often processes were started: steps of one generation are not news in the next."""

    def renew(self, local_world_size: int) -> list[dict[str, str]]:
        """Fresh files for newly started processes; the environment that names them, by local rank."""
        for path in (*self._steps, self._metrics):
            path.unlink(missing_ok=True)  # a process that lingers writes on into the file that nobody reads
        self._steps = [self._directory / f"step.{rank}" for rank in range(local_world_size)]
        for path in self._steps:
            path.write_bytes(bytes(_RECORD.size))
        self._since = time.time()
        self.generation += 1
        metrics = os.environ.get(ENV_RUNTIME_METRICS) or str(self._metrics)
        return [{ENV_PROGRESS_FILE: str(path), ENV_RUNTIME_METRICS: metrics} for path in self._steps]

    def read(self) -> Look:
        """What the processes told since they were started."""
        records = {rank: _read_record(path) for rank, path in enumerate(self._steps)}
        steps = {rank: (r.first or r.step, r.step) for rank, r in records.items() if r.step is not None}
        shared = self._read_metrics()
        if shared is not None:
            steps[len(records)] = shared, shared
        saved = {rank: r.checkpoint for rank, r in records.items() if r.checkpoint is not None}
        return Look(
            steps=steps or {rank: (checkpoint, checkpoint) for rank, checkpoint in saved.items()},
            checkpoint_step=max((checkpoint.step for checkpoint in saved.values()), default=None),
        )

    def read_rank(self, local_rank: int) -> RankProgress:
        """What one process told; it can be read after its end too, until the next start.

        The step in DLRover's metrics file, which the processes share, counts for one that has no other way.
        """
        steps = self._steps  # renewed as a whole by another thread
        record = _read_record(steps[local_rank]) if local_rank < len(steps) else _Record()
        step = record.step or self._read_metrics()
        told = step or record.checkpoint
        if told is None:
            return RankProgress(busy_until=record.busy_until)
        at = max(told.at, record.checkpoint.at) if record.checkpoint else told.at
        return RankProgress(told.step, at, record.busy_until, tells_steps=step is not None)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read_metrics(self) -> Told | None:
        path = Path(os.environ.get(ENV_RUNTIME_METRICS) or self._metrics)
        try:
            metrics = json.loads(path.read_text())
            at, step = float(metrics["timestamp"]), int(metrics["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Told(time.monotonic() - (time.time() - at), step) if at >= self._since and step >= 0 else None


@dataclass(frozen=True)
class Look:
    """What all the processes of one start told."""

    steps: dict[int, tuple[Told, Told]]
    """The first and the newest, by local rank; the file that they share comes as one rank more. A script that
    tells nothing but its checkpoints is at least as far as these."""
    checkpoint_step: int | None = None
    """The highest."""

    @property
    def newest(self) -> Told | None:
        return max((newest for _, newest in self.steps.values()), default=None)


@dataclass(frozen=True)
class _Record:
    """One process's file."""

    step: Told | None = None
    checkpoint: Told | None = None
    busy_until: float | None = None
    first: Told | None = None


def _read_record(path: Path) -> _Record:
    try:
        words = _RECORD.unpack(path.read_bytes())
    except (OSError, struct.error):
        return _Record()
    step, checkpoint, (_, busy_until), first = zip(words[::2], words[1::2], strict=True)
    return _Record(_told(*step), _told(*checkpoint), busy_until or None, _told(*first))


def _told(step: int, at: float) -> Told | None:
    return None if at == 0.0 or step < 0 else Told(at, step)


def _wall_clock(monotonic: float) -> datetime:
    return datetime.fromtimestamp(time.time() - (time.monotonic() - monotonic), timezone.utc)


class ProgressMonitor(threading.Thread):
    """Looks at the files now and then, and has the reporter tell what changed.

    The reporter asks for the figures with whatever it tells, so those of a failure are the last ones.
    """

    def __init__(self, files: ProgressFiles, reporter: Reporter) -> None:
        super().__init__(name="dlr-progress", daemon=True)
        self._files = files
        self._reporter = reporter
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._start = _Start(0, 0)
        self._figures = Figures(rounds=reporter.latest.rounds)
        self._told: tuple[int, Progress] | None = None
        """The last, and of which generation it was."""
        reporter.follow(self.figures)

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        while not self._stop_event.wait(self._look_seconds()):
            self.look()

    def figures(self) -> Figures:
        """How far training is now."""
        return self._now()[1]

    def look(self) -> None:
        """Have told what is new."""
        start, figures = self._now()
        progress = figures.progress
        before = self._told[1] if self._told is not None and self._told[0] == start.generation else None
        if progress is None or (before is not None and _steps(before) == _steps(progress)):
            return
        self._told = start.generation, progress
        # The first step after a start is news: it says that a restart is over. So is a checkpoint, since a
        # world that is to grow may wait for it.
        news = before is None or before.checkpoint_step != progress.checkpoint_step
        self._reporter.progress(at_once=news)

    def _now(self) -> tuple[_Start, Figures]:
        with self._lock:
            generation = self._files.generation
            look = self._files.read()
            if generation == self._files.generation:  # not just between two starts
                self._take(generation, look)
            return self._start, self._figures

    def _take(self, generation: int, look: Look) -> None:
        if self._start.generation != generation:
            self._start = _Start(generation, self._reporter.latest.observed_round)
            self._figures = Figures(rounds=self._figures.rounds)
        start = self._start
        for rank, (first, newest) in look.steps.items():
            start.stepping.see(rank, first, newest)
        if look.newest is None:
            return
        before = self._figures.progress
        saved = [look.checkpoint_step, before.checkpoint_step if before else None]
        self._figures = Figures(
            progress=Progress(
                step=look.newest.step,
                time=_wall_clock(look.newest.at),
                checkpoint_step=max((step for step in saved if step is not None), default=None),
                seconds_per_step=start.stepping.seconds_per_step(),
            ),
            rounds=with_round(self._figures.rounds, start.stepping.in_round(start.round)),
        )

    def _look_seconds(self) -> float:
        stepped = self._told is not None and self._told[0] == self._files.generation
        return LOOK_SECONDS if stepped else FIRST_LOOK_SECONDS


@dataclass(frozen=True)
class _Start:
    """The processes that run, or ran last."""

    generation: int
    round: int
    """Told before they were started."""
    stepping: Stepping = field(default_factory=Stepping)


def _steps(progress: Progress) -> tuple[int, int | None]:
    return progress.step, progress.checkpoint_step


class TrackedLogsSpecs(LogsSpecs):
    """The given LogsSpecs, which also hands each process its progress file, and remembers where the logs are.

    torch calls `reify` once for every start of the processes, to lay out their files and to name those in
    their environment: just what is needed here.
    """

    def __init__(self, inner: LogsSpecs, files: ProgressFiles) -> None:
        super().__init__()
        self._inner = inner
        self._files = files
        self.latest = LogsDest()

    @property
    def root_log_dir(self) -> str:
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.latest = self._inner.reify(envs)
        for env, progress in zip(envs.values(), self._files.renew(len(envs)), strict=True):
            env.update(progress)
        return self.latest
