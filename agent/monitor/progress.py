"""Progress of training: reported by scripts through `dlr` or DLRover's metrics file, or counted.

Each training process gets a file of 400 bytes (the progress record of crds/progress_record.py), and the
agent's processes share one metrics file `{"step": …, "timestamp": …}` under the name that DLRover's
trainers look up. All files lie in a directory of this agent, so that two agents on one host never mix.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from agent.facts.arrival import GroupTimes
from agent.monitor.stepping import ProcessStart, StepReport
from crds import progress_record as layout
from crds.agent_report import AgentCheckpointTrouble
from crds.checkpoint_files import MAX_TROUBLE, CheckpointTrouble

ENV_RUNTIME_METRICS = "RUNTIME_METRICS_PATH"

MAX_STEP = (1 << 63) - 1
"""Largest step; the API server would refuse the whole report with a larger number."""
CLOCK_SECONDS = 1.0
"""Time by which a report may lie in the future, after the clock has been set back."""

BESIDE = (layout.TROUBLE_SUFFIX, layout.RESULT_SUFFIX, layout.ENDED_SUFFIX, layout.GROUP_SUFFIX)
"""Suffixes of the files that a process may write beside its record."""
FIRST_COUNT_SECONDS = 10.0
"""Time that a first counted step waits for the second, or for the script's own report."""
_RECORD = struct.Struct(f"{layout.PROGRESS_FORMAT}{layout.NUMBERS_FORMAT}")


@dataclass(frozen=True)
class RankProgress:
    """Progress of one training process since its start."""

    step: int | None = None
    """Newest step. A script that reports only checkpoints has the step of the last one."""
    last_report_at: float | None = None
    """Time of its last report of a step or a checkpoint (CLOCK_MONOTONIC)."""
    busy_until: float | None = None
    """End (CLOCK_MONOTONIC) of a time without steps (`dlr.busy`); None if it is not busy."""
    reports_steps: bool = False
    """Whether it reports steps, and not just checkpoints."""


@dataclass(frozen=True)
class ScriptEnd:
    """End of a script whose process may still live."""

    code: int
    """Exit code of the process, if nothing else ends it."""
    raised: bool
    """An exception ended the script."""
    at: float
    """Time of CLOCK_MONOTONIC."""
    threads: Mapping[int, str] = field(default_factory=dict)
    """Names of the threads that the interpreter waits for, by identifier."""


class ProgressFiles:
    """The progress files of one agent's training processes.

    Counted steps do not count once the script has reported steps itself.

    Args:
        script_reports: whether it has done so under an earlier agent of the slot.
        trouble: trouble with checkpoints that an earlier agent of the slot has reported. It lasts until the
            first process reports that it is over.
    """

    def __init__(
        self, *, script_reports: bool = False, trouble: AgentCheckpointTrouble | None = None
    ) -> None:
        self.script_reports = script_reports
        self.directory = Path(tempfile.mkdtemp(prefix="dlr_"))
        self._metrics = self.directory / "runtime_metrics.json"
        self._steps: list[Path] = []
        self._ahead: dict[int, int] = {}
        """Number of steps by which a process's count is behind the others', by local rank."""
        self._trouble: dict[tuple[int, CheckpointTrouble], str] = {}
        """Last report of each kind, by local rank; those of earlier processes stay until there are new
        ones."""
        if trouble is not None:
            self._trouble[0, trouble.reason] = trouble.message
        self._since = time.time()
        self.generation = 0
        """Number of starts of processes. Steps of different generations are not compared."""
        self.start = ProcessStart()
        """The last start of processes."""

    def recorder_of(self, rank: int) -> Path:
        """Return the socket at which the process of a local rank offers torch's flight recorder."""
        return self.directory / f"recorder.{rank}"

    def renew(self, local_world_size: int, start: ProcessStart) -> list[dict[str, str]]:
        """Create new files for processes that are about to start.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: a file cannot be written.
        """
        beside = [path.with_name(path.name + suffix) for path in self._steps for suffix in BESIDE]
        for path in (*self._steps, *beside, self._metrics):
            path.unlink(missing_ok=True)  # a lingering process goes on writing into a deleted file
        self._steps = [self.directory / f"step.{rank}" for rank in range(local_world_size)]
        self._ahead = {}
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # a script may have emptied /tmp
        for path in self._steps:
            path.write_bytes(bytes(layout.RECORD_BYTES))
        self._since = time.time()
        self.start = start
        self.generation += 1
        metrics = str(self._shared_metrics())
        return [{layout.ENV_PROGRESS_FILE: str(path), ENV_RUNTIME_METRICS: metrics} for path in self._steps]

    @property
    def records(self) -> Sequence[Path]:
        """Progress records of the current processes, by local rank."""
        return self._steps

    @property
    def has_step(self) -> bool:
        """Whether a process has made a step since its start."""
        return any(self.read_rank(rank).reports_steps for rank in range(len(self._steps)))

    def read(self) -> Snapshot:
        """Read the reports of the current processes."""
        records = {rank: read_record(path) for rank, path in enumerate(self._steps)}
        shared = self._read_metrics()
        saved = {rank: r.checkpoint for rank, r in records.items() if r.checkpoint is not None}
        reported = {rank: (r.first or r.step, r.step) for rank, r in records.items() if r.step is not None}
        if shared is not None:
            reported[len(records)] = shared, shared
        self.script_reports = self.script_reports or bool(reported)
        began = {rank: r.counted[0].step for rank, r in records.items() if r.counted}
        self._ahead = ahead = {rank: max(began.values()) - step for rank, step in began.items()}
        counted = {
            rank: later(r.counted, ahead[rank])  # `self._ahead` may be renewed meanwhile
            for rank, r in records.items()
            if r.counted and is_believed(r.counted) and not self.script_reports
        }
        checkpoints = {rank: (checkpoint, checkpoint) for rank, checkpoint in saved.items()}
        return Snapshot(
            steps=reported or counted or checkpoints,
            checkpoint=max(saved.values(), key=lambda each: (each.step, each.at), default=None),
            counted=bool(counted),
            start_unknown=bool(counted)
            and not self.start.of_new_job
            and all(records[rank].start_unknown for rank, steps in ahead.items() if steps == 0),
            non_finite_step=min(
                (r.non_finite_step for r in records.values() if r.non_finite_step is not None), default=None
            ),
            trouble=self._read_trouble(),
            samples_per_step=max((r.samples_per_step for r in records.values()), default=0) or None,
            numbers=next((r.numbers for r in records.values() if r.numbers), {}),
            busy=any(r.busy_until is not None and r.busy_until > time.monotonic() for r in records.values()),
        )

    def read_rank(self, local_rank: int) -> RankProgress:
        """Read the report of one process, also after its end, until the next start.

        A process without a report of its own has the step in DLRover's metrics file, which the processes
        share. The counted step is used if the script does not report any.
        """
        steps = self._steps  # renewed as a whole by another thread
        record = read_record(steps[local_rank]) if local_rank < len(steps) else ProcessProgress()
        step = record.step or self._read_metrics()
        if step is None and record.counted and is_believed(record.counted) and not self.script_reports:
            _, step = later(record.counted, self._ahead.get(local_rank, 0))
        newest = step or record.checkpoint
        if newest is None:
            return RankProgress(busy_until=record.busy_until)
        at = max(newest.at, record.checkpoint.at) if record.checkpoint else newest.at
        return RankProgress(newest.step, at, record.busy_until, reports_steps=step is not None)

    def script_end(self, local_rank: int) -> ScriptEnd | None:
        """Return the end of a forked process's script; None while it runs, or if it is unknown."""
        if local_rank >= len(self._steps):
            return None
        record = self._steps[local_rank]
        try:
            mark = json.loads(record.with_name(f"{record.name}{layout.ENDED_SUFFIX}").read_bytes())
            threads = {int(ident, 16): str(name) for ident, name in mark["threads"].items()}
            return ScriptEnd(int(mark["code"]), bool(mark["raised"]), float(mark["at"]), threads)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def group_times(self) -> GroupTimes | None:
        """Return the times at which the processes formed their process group; None until all have."""
        began, ended, now = [], [], time.monotonic()
        for record in self._steps:
            try:
                mark = json.loads(record.with_name(f"{record.name}{layout.GROUP_SUFFIX}").read_bytes())
                imported, initialized = float(mark["imported"]), float(mark["initialized"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                return None
            if not 0 <= imported <= initialized <= now:
                return None
            began.append(imported)
            ended.append(initialized)
        return GroupTimes(wall_clock(max(began)), wall_clock(max(ended))) if began else None

    def result(self, ranks: Mapping[int, int]) -> str | None:
        """Return the JSON text of rank 0's `dlr.report_result`; None if there is none, or rank 0 is
        elsewhere.

        A text that is too long, or no JSON, is dropped: the API server would refuse the whole report.

        Args:
            ranks: global ranks of the processes, by local rank.
        """
        record = next((path for local, path in enumerate(self._steps) if ranks.get(local) == 0), None)
        if record is None:
            return None
        try:
            text = record.with_name(f"{record.name}{layout.RESULT_SUFFIX}").read_text()
            json.loads(text)
        except (OSError, ValueError, RecursionError):
            return None
        return text if len(text) <= layout.MAX_RESULT else None

    @property
    def marker(self) -> str:
        """Prefix of an environment variable that only this agent's training processes have."""
        return f"{layout.ENV_PROGRESS_FILE}={self.directory}/"

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _shared_metrics(self) -> Path:
        return Path(os.environ.get(ENV_RUNTIME_METRICS) or self._metrics)

    def _read_trouble(self) -> AgentCheckpointTrouble | None:
        """Return the trouble with checkpoints of the first process that reports any."""
        for rank, path in enumerate(self._steps):
            try:
                reported = json.loads(_trouble_of(path).read_bytes())
            except (OSError, ValueError, RecursionError):
                continue  # most processes have no such file
            for kind in CheckpointTrouble:
                if isinstance(reported, dict) and kind in reported:
                    self._trouble[rank, kind] = str(reported[kind])
        for rank in range(len(self._steps)):
            for kind in CheckpointTrouble:
                if message := self._trouble.get((rank, kind)):
                    return AgentCheckpointTrouble(kind, message[:MAX_TROUBLE])
        return None

    def note_lost(self, sentence: str) -> None:
        """Note that a checkpoint is lost, after all processes have ended."""
        self._read_trouble()
        for path in self._steps:
            _trouble_of(path).unlink(missing_ok=True)
        self._trouble[0, CheckpointTrouble.LOST] = sentence

    def _read_metrics(self) -> StepReport | None:
        try:
            metrics = json.loads(self._shared_metrics().read_text())
            at, step = float(metrics["timestamp"]), int(metrics["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        now = time.time()
        if not (self._since <= at <= now + CLOCK_SECONDS and 0 <= step <= MAX_STEP):
            return None  # from an earlier start, or in other units, such as milliseconds
        return StepReport(time.monotonic() - (now - at), step)


@dataclass(frozen=True)
class Snapshot:
    """Reports of all processes of one start."""

    steps: dict[int, tuple[StepReport, StepReport]]
    """First and newest report, by local rank. The shared metrics file counts as one more rank; for a script
    that reports only checkpoints, these are its steps."""
    checkpoint: StepReport | None = None
    """Checkpoint of the highest step."""
    counted: bool = False
    """The steps were counted, since the script reports none. All processes of a start begin with the same
    step, and the highest number is right: some scripts load only on rank 0."""
    start_unknown: bool = False
    """The count began with an unknown step: the optimizer keeps no number, and the job is not new."""
    non_finite_step: int | None = None
    """First step whose loss a process reported to be NaN or infinite."""
    trouble: AgentCheckpointTrouble | None = None
    samples_per_step: int | None = None
    """Samples of all ranks, as a process has reported them."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a process reported with its newest step; those of the first process with any."""
    busy: bool = False
    """A process expects no step now (`dlr.busy`)."""

    @property
    def checkpoint_step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.step

    @property
    def newest(self) -> StepReport | None:
        return max((newest for _, newest in self.steps.values()), default=None)


def _trouble_of(record: Path) -> Path:
    return record.with_name(f"{record.name}{layout.TROUBLE_SUFFIX}")


@dataclass(frozen=True)
class ProcessProgress:
    """Content of one process's progress record."""

    step: StepReport | None = None
    checkpoint: StepReport | None = None
    busy_until: float | None = None
    first: StepReport | None = None
    counted: tuple[StepReport, StepReport] | None = None
    """First and newest counted step."""
    start_unknown: bool = False
    non_finite_step: int | None = None
    samples_per_step: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def read_record(path: Path) -> ProcessProgress:
    try:
        words = _RECORD.unpack(path.read_bytes())
    except (OSError, struct.error):
        return ProcessProgress()
    first, newest = (
        _step_report(words[layout.FIRST_COUNTED], words[layout.FIRST_COUNTED_AT]),
        _step_report(words[layout.COUNTED], words[layout.COUNTED_AT]),
    )
    return ProcessProgress(
        _step_report(words[layout.STEP], words[layout.STEP_AT]),
        _step_report(words[layout.CHECKPOINT], words[layout.CHECKPOINT_AT]),
        words[layout.BUSY_UNTIL] or None,
        _step_report(words[layout.FIRST_STEP], words[layout.FIRST_STEP_AT]),
        (first, newest) if first and newest else None,
        start_unknown=bool(words[layout.START_UNKNOWN]),
        non_finite_step=words[layout.NON_FINITE] - 1 if words[layout.NON_FINITE] > 0 else None,
        samples_per_step=max(words[layout.SAMPLES], 0),
        numbers=dict(_numbers(words[layout.FIRST_NUMBER :])),
    )


def _numbers(words: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each valid number; a script may write anything there."""
    for value, name in zip(words[::2], words[1::2], strict=True):
        if (text := name.rstrip(b"\0").decode(errors="ignore")) and math.isfinite(value):
            yield text, value


def is_believed(counted: tuple[StepReport, StepReport]) -> bool:
    """Whether a count is old enough: a script that reports steps itself would have done so by now."""
    first, newest = counted
    return newest.step != first.step or time.monotonic() - first.at >= FIRST_COUNT_SECONDS


def later(counted: tuple[StepReport, StepReport], ahead: int) -> tuple[StepReport, StepReport]:
    """Shift a count by `ahead` steps."""
    first, newest = counted
    return StepReport(first.at, first.step + ahead), StepReport(newest.at, newest.step + ahead)


def _step_report(step: int, at: float) -> StepReport | None:
    return None if at == 0.0 or step < 0 else StepReport(at, step)


def wall_clock(monotonic: float) -> datetime:
    """Convert a past time of CLOCK_MONOTONIC to the node's clock."""
    return datetime.fromtimestamp(time.time() - (time.monotonic() - monotonic), timezone.utc)
