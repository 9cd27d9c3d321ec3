from __future__ import annotations

import json
import math
import shutil
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.monitor import progress as progress_files
from agent.monitor.progress import (
    ENV_RUNTIME_METRICS,
    FIRST_COUNT_SECONDS,
    ProgressFiles,
    RankProgress,
    Snapshot,
)
from agent.monitor.stepping import Figures, ProcessStart, StepReport
from agent.report import progress_monitor
from agent.report.progress_monitor import ProgressMonitor, TrainingProgress
from agent.report.report import ReportBody
from crds.agent_report import AgentCheckpointTrouble, AgentState, RoundProgress, Series, Usage
from crds.checkpoint_files import CheckpointTrouble
from crds.progress_record import (
    ENV_PROGRESS_FILE,
    GROUP_SUFFIX,
    NUMBERS_FORMAT,
    PROGRESS_FORMAT,
    RECORD_BYTES,
)
from crds.wire import from_wire
from dlr import progress as sdk
from tests.cli.scripted import Clock

USAGE = Usage(2.0, 2**31, 2**30)
time = Clock()
"""By which agent and scripts go here; each script takes a second."""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ENV_RUNTIME_METRICS, raising=False)
    files = ProgressFiles()
    yield files
    files.remove()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (progress_files, progress_monitor, sdk):
        monkeypatch.setattr(module, "time", time)


def run_script(env: dict[str, str], code: str) -> None:
    """Run it as in a process of its own, which has reported nothing yet."""
    time.sleep(1.0)
    with pytest.MonkeyPatch.context() as process:
        for name, value in env.items():
            process.setenv(name, value)
        for name, first in (("_slot", None), ("_has_stepped", False), ("_places", {}), ("_copies", {})):
            process.setattr(sdk, name, first)
        exec(code, {})


def report_step(env: dict[str, str], step: int) -> None:
    run_script(env, f"import dlr; dlr.report({step})")


def save_checkpoint(env: dict[str, str], step: int) -> None:
    run_script(env, f"import dlr; dlr.checkpoint_saved({step})")


def newest_step(files: ProgressFiles) -> int | None:
    newest = files.read().newest
    return newest and newest.step


def test_processes_start_again_after_a_script_that_emptied_the_temporary_directory(
    files: ProgressFiles,
) -> None:
    shutil.rmtree(files.directory)
    (variables,) = files.renew(1, ProcessStart(2))
    assert Path(variables[ENV_PROGRESS_FILE]).stat().st_size == RECORD_BYTES
    assert files.directory.stat().st_mode & 0o777 == 0o700, "as mkdtemp has it"


def test_each_process_is_read_by_itself_too(files: ProgressFiles) -> None:
    first, second, _third = files.renew(3, ProcessStart(1))
    report_step(first, 7)
    report_step(second, 5)
    save_checkpoint(second, 5)
    ranks = [files.read_rank(rank) for rank in range(3)]
    assert [rank.step for rank in ranks] == [7, 5, None]
    told = [rank.last_report_at for rank in ranks]
    assert told[0] < told[1] <= time.monotonic()
    assert ranks[2] == RankProgress()
    assert files.read_rank(9) == RankProgress()


@pytest.mark.parametrize(
    "told",
    [
        {"step": 12, "timestamp": time.time() * 1000 + 60_000},
        {"step": 12, "timestamp": float("nan")},
        {"step": 1 << 70, "timestamp": time.time() + 0.5},
        [],
    ],
)
def test_whatever_a_script_writes_into_the_metrics_file_the_agent_lives(
    files: ProgressFiles, told: object
) -> None:
    (env,) = files.renew(1, ProcessStart(1))
    Path(env[ENV_RUNTIME_METRICS]).write_text(json.dumps(told))
    assert files.read().newest is None
    assert files.read_rank(0).step is None


def test_dlrovers_metrics_file_counts_too(files: ProgressFiles) -> None:
    (env,) = files.renew(1, ProcessStart(1))
    metrics = Path(env[ENV_RUNTIME_METRICS])
    metrics.write_text(json.dumps({"step": 12, "timestamp": time.time()}))
    assert newest_step(files) == 12
    metrics.write_text('{"step": 13, "times')  # half written
    assert newest_step(files) is None


def first_report(**known: Any) -> ReportBody:
    return ReportBody(AgentState.READY, datetime.now(UTC), 0, **known)


class FakeReporter:
    def __init__(self, progress: TrainingProgress) -> None:
        self.latest = first_report()
        self.figures = progress.figures
        self.told: list[tuple[int, int | None, bool]] = []
        self.checkpoints: list[tuple[int, int | None]] = []
        self.awaited: list[bool] = []

    def progress(self, *, within_seconds: float | None) -> None:
        progress = self.figures().progress
        self.told.append((progress.step, progress.checkpoint_step, within_seconds == 0.0))

    def checkpoint(self, *, is_awaited: bool = False) -> None:
        progress = self.figures().progress
        self.checkpoints.append((progress.step, progress.checkpoint_step))
        self.awaited.append(is_awaited)

    def hasten(self) -> None:
        pass


def monitored(files: ProgressFiles, **options: Any) -> tuple[TrainingProgress, FakeReporter, ProgressMonitor]:
    progress = TrainingProgress(files, first_report(), lambda: USAGE)
    reporter = FakeReporter(progress)
    return progress, reporter, ProgressMonitor(progress, reporter, **options)  # type: ignore[arg-type]


def test_only_changes_are_told_and_the_first_of_a_round_at_once(files: ProgressFiles) -> None:
    progress = TrainingProgress(files, first_report(), lambda: USAGE)
    reporter = FakeReporter(progress)
    first_steps: list[int] = []
    monitor = ProgressMonitor(
        progress,
        reporter,  # type: ignore[arg-type]
        at_first_steps=lambda: first_steps.append(len(reporter.told)),
    )
    (env,) = files.renew(1, ProcessStart(1))
    monitor.look()
    assert not first_steps
    report_step(env, 1)
    monitor.look()
    monitor.look()
    report_step(env, 2)
    monitor.look()
    (env,) = files.renew(1, ProcessStart(2))
    monitor.look()
    report_step(env, 2)
    monitor.look()
    assert reporter.told == [(1, None, True), (2, None, False), (2, None, True)]
    assert first_steps == [0, 2]


def test_a_checkpoint_is_told_and_never_falls_within_a_round(files: ProgressFiles) -> None:
    _progress, reporter, monitor = monitored(files)
    (env,) = files.renew(1, ProcessStart(1))
    report_step(env, 9)
    monitor.look()
    save_checkpoint(env, 9)
    monitor.look()
    monitor.look()
    save_checkpoint(env, 4)  # the script went back, and is not as far again yet
    monitor.look()
    report_step(env, 5)
    monitor.look()
    (env,) = files.renew(1, ProcessStart(1))
    report_step(env, 5)
    monitor.look()
    save_checkpoint(env, 5)
    monitor.look()
    assert reporter.told == [(9, None, True), (5, 9, False), (5, None, True)]
    assert reporter.checkpoints == [(9, 9), (5, 5)]


def stretch(round_progress: RoundProgress) -> tuple[int, int, int]:
    return round_progress.round, round_progress.first_step, round_progress.last_step


def tell(
    env: dict[str, str], step: int, at: float, first: StepReport | None = None, samples: int = 0
) -> None:
    """As the SDK does, at a time of our choice."""
    told = first or StepReport(0.0, 0)
    words = (step, at, 0, 0.0, 0, 0.0, told.step, told.at, 0, 0.0, 0, 0.0, 0, 0, 0, 0, 0, samples)
    Path(env[ENV_PROGRESS_FILE]).write_bytes(
        struct.pack(PROGRESS_FORMAT, *words) + bytes(struct.calcsize(NUMBERS_FORMAT))
    )


def count(env: dict[str, str], step: int, at: float, first: StepReport, unknown: int = 0) -> None:
    """As the hook of a process does whose script tells nothing."""
    words = (0, 0.0, 0, 0.0, 0, 0.0, 0, 0.0, step, at, first.step, first.at, 0, 0, 0, 0, unknown, 0)
    Path(env[ENV_PROGRESS_FILE]).write_bytes(
        struct.pack(PROGRESS_FORMAT, *words) + bytes(struct.calcsize(NUMBERS_FORMAT))
    )


def test_what_was_trained_is_told_by_round(files: ProgressFiles) -> None:
    progress, _reporter, monitor = monitored(files)
    (env,) = files.renew(1, ProcessStart(1))
    now = time.monotonic()
    tell(env, 12, now - 8, first=StepReport(now - 10, 11))
    monitor.look()
    tell(env, 15, now - 2, first=StepReport(now - 10, 11), samples=64)
    figures = progress.figures()
    assert figures.rounds[0].samples_per_step == 64
    assert [stretch(r) for r in figures.rounds] == [(1, 11, 15)]
    assert figures.rounds[0].stepping_seconds == pytest.approx(8)
    assert figures.progress.seconds_per_step == pytest.approx(2)
    (env,) = files.renew(1, ProcessStart(2))
    assert progress.figures() == Figures(rounds=figures.rounds)
    tell(env, 13, now)  # an older `dlr` does not say which was the first
    assert [stretch(r) for r in progress.figures().rounds] == [(1, 11, 15), (2, 13, 13)]


def test_the_last_steps_of_processes_that_have_ended_are_told_with_their_failure(
    files: ProgressFiles,
) -> None:
    _progress, reporter, monitor = monitored(files)
    (env,) = files.renew(1, ProcessStart(1))
    report_step(env, 3)
    monitor.look()
    report_step(env, 4)  # nobody has looked since
    assert [stretch(r) for r in reporter.figures().rounds] == [(1, 3, 4)]
    files.remove()
    assert [stretch(r) for r in reporter.figures().rounds] == [(1, 3, 4)]


def test_first_step_of_any_process_whose_loss_is_no_number_is_told_with_its_round(
    files: ProgressFiles,
) -> None:
    script = "from dlr import report; report({0}, 1.0); report({0} + 1, float('nan'))"
    for env, step in zip(files.renew(2, ProcessStart(1)), (7, 4), strict=True):
        run_script(env, script.format(step))
    progress = TrainingProgress(files, first_report(), lambda: USAGE)
    (told,) = progress.figures().rounds
    assert (told.last_step, told.non_finite_step) == (8, 5)
    assert from_wire(RoundProgress, told.to_wire()).non_finite_step == 5
    files.renew(2, ProcessStart(1))
    assert progress.figures().rounds == (told,), "it is told of that round for good"


def test_numbers_are_read_by_name_and_those_beyond_the_room_are_left_out(files: ProgressFiles) -> None:
    (env,) = files.renew(1, ProcessStart(1))
    run_script(
        env,
        """
import dlr
dlr.report(1, loss=float("inf"), lr=float("nan"))
dlr.report(2, loss=2.5, lr=0.1, Größe=3, **{"x" * 25: 1.0})
dlr.report(3, loss=float("nan"), lr=0.2, **{f"n{i}": i for i in range(9)})
""",
    )
    snapshot = files.read()
    assert snapshot.numbers == {"loss": 2.5, "lr": 0.2, "Größe": 3.0, **{f"n{i}": float(i) for i in range(5)}}
    assert snapshot.non_finite_step == 1
    files.renew(1, ProcessStart(1))
    assert files.read().numbers == {}


def test_the_jobs_past_is_in_the_reports_of_rank_0_and_an_earlier_agents_is_taken_over(
    files: ProgressFiles,
) -> None:
    progress, _, monitor = monitored(files)
    for leads in (True, False):
        (env,) = files.renew(1, ProcessStart(1, world_size=4, leads=leads))
        for step in range(1, 8):
            run_script(env, f"import dlr; dlr.report({step}, loss={step})")
            monitor.look()
        assert (progress.figures().series is not None) == leads
    told = from_wire(Series, progress._chronicle._history.series.to_wire())
    files.renew(1, ProcessStart(1, world_size=4))
    series = TrainingProgress(files, first_report(series=told), lambda: USAGE).figures().series
    assert series is not None and [point.numbers for point in series.points] == [{"loss": 4.0}] * 2
    assert [point.usage for point in series.points] == [{"cpuCores": 2.0, "memoryBytes": 1.07e9}] * 2


def test_trouble_with_checkpoints_is_told_until_it_works_after_a_start_too(files: ProgressFiles) -> None:
    first, second = files.renew(2, ProcessStart(1))

    def tell_trouble(env: dict[str, str], **told: str) -> None:
        Path(f"{env['DLR_PROGRESS_FILE']}.trouble").write_text(json.dumps(told))

    _progress, reporter, monitor = monitored(files)
    assert files.read().trouble is None
    report_step(first, 1)
    monitor.look()
    tell_trouble(second, SaveSkipped="slow", StorageFails="full" * 1_000)
    found = files.read().trouble
    assert found == AgentCheckpointTrouble(CheckpointTrouble.STORAGE, ("full" * 1_000)[:512])
    monitor.look()
    monitor.look()
    assert reporter.checkpoints == [(1, None)], "once"
    assert reporter.figures().checkpoint_trouble == found
    first, second = files.renew(2, ProcessStart(1))
    assert files.read().trouble == found, "the new processes have saved nothing yet"
    tell_trouble(second, StorageFails="", SaveSkipped="")
    assert files.read().trouble is None
    for text in ("half of", "[" * 100_000):
        Path(f"{first['DLR_PROGRESS_FILE']}.trouble").write_text(text)
        assert files.read().trouble is None


def test_what_was_counted_says_how_far_a_script_is_that_tells_nothing(files: ProgressFiles) -> None:
    progress = TrainingProgress(files, first_report(), lambda: USAGE)
    (env,) = files.renew(1, ProcessStart(1))
    now = time.monotonic()
    count(env, 6, now, first=StepReport(now - 10, 1))
    figures = progress.figures()
    assert figures.rounds == (RoundProgress(1, 1, 6, pytest.approx(10), counted=True),)
    assert figures.progress and figures.progress.seconds_per_step == pytest.approx(2)
    rank = files.read_rank(0)
    assert (rank.step, rank.last_report_at, rank.reports_steps) == (6, pytest.approx(now), True)


def test_a_first_count_waits_for_what_the_script_may_tell_in_a_moment(files: ProgressFiles) -> None:
    (env,) = files.renew(1, ProcessStart(1))
    now = time.monotonic()
    just_now = now + 3_600  # however late it is read
    count(env, 1, just_now, first=StepReport(just_now, 1))
    assert files.read() == Snapshot({})
    assert files.read_rank(0) == RankProgress()
    long_ago = now - FIRST_COUNT_SECONDS
    count(env, 1, long_ago, first=StepReport(long_ago, 1))
    assert files.read().newest == StepReport(pytest.approx(long_ago), 1)


def test_once_a_script_tells_its_steps_nothing_counts_that_was_counted(files: ProgressFiles) -> None:
    progress, _reporter, _monitor = monitored(files)
    first, second = files.renew(2, ProcessStart(1))
    now = time.monotonic()
    count(second, 6, now - 5, first=StepReport(now - 10, 1))
    assert [r.counted for r in progress.figures().rounds] == [True]
    tell(first, 1_006, now, first=StepReport(now - 1, 1_005))
    figures = progress.figures()
    assert figures.progress and figures.progress.step == 1_006
    assert figures.rounds == (RoundProgress(1, 1_005, 1_006, pytest.approx(1)),)
    assert files.read_rank(1) == RankProgress(), "its number compares with no other"

    first, second = files.renew(2, ProcessStart(1))
    count(second, 6, now, first=StepReport(now - 10, 1))
    assert files.read() == Snapshot({})


def leave_mark(record: str, mark: object) -> None:
    Path(f"{record}{GROUP_SUFFIX}").write_text(mark if isinstance(mark, str) else json.dumps(mark))


def test_process_group_is_there_when_the_last_process_has_it(files: ProgressFiles) -> None:
    first, second = (env[ENV_PROGRESS_FILE] for env in files.renew(2, ProcessStart(1, 2)))
    began = time.monotonic()
    time.sleep(9.0)
    leave_mark(first, {"imported": began + 1, "initialized": began + 7})
    assert files.group_times() is None
    leave_mark(second, {"imported": began + 3, "initialized": began + 4})
    times = files.group_times()
    assert times is not None
    assert (times.initialized - times.imported).total_seconds() == pytest.approx(4)
    files.renew(2, ProcessStart(2, 2))
    assert files.group_times() is None, "these were others"


@pytest.mark.parametrize(
    "mark",
    ["{", "7", {"imported": 1}, {"imported": "x", "initialized": 2}]
    + [{"imported": i, "initialized": j} for i, j in ((2, 1), (-1, 1), (1, 1e300), (math.nan, 1))],
)
def test_mark_that_makes_no_sense_is_none(files: ProgressFiles, mark: object) -> None:
    ((record),) = (env[ENV_PROGRESS_FILE] for env in files.renew(1, ProcessStart()))
    leave_mark(record, mark)
    assert files.group_times() is None
