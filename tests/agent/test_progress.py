from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from agent.progress import (
    ENV_PROGRESS_FILE,
    ENV_RUNTIME_METRICS,
    ProgressFiles,
    ProgressMonitor,
    TrackedLogsSpecs,
)
from agent.report import Progress, Report
from agent.world import AgentState

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ENV_RUNTIME_METRICS, raising=False)
    files = ProgressFiles()
    yield files
    files.remove()


def report_step(env: dict[str, str], step: int) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import dlr; dlr.report_step({step})"],
        env=env,
        cwd=ROOT,
        check=True,
        timeout=20,
    )


def test_newest_step_of_any_process_is_read(files: ProgressFiles) -> None:
    first, second = files.renew(2)
    assert files.read() is None
    report_step(second, 7)
    report_step(first, 6)
    progress = files.read()
    assert progress is not None
    assert progress.step == 6
    assert abs((datetime.now(UTC) - progress.time).total_seconds()) < 5


def test_started_anew_nothing_is_told_yet(files: ProgressFiles) -> None:
    (env,) = files.renew(1)
    report_step(env, 7)
    files.renew(1)
    assert files.read() is None


def test_dlrovers_metrics_file_counts_too(files: ProgressFiles) -> None:
    (env,) = files.renew(1)
    metrics = Path(env[ENV_RUNTIME_METRICS])
    metrics.write_text(json.dumps({"step": 12, "timestamp": time.time()}))
    assert files.read().step == 12
    metrics.write_text('{"step": 13, "times')  # half written
    assert files.read() is None


def test_two_agents_on_one_host_do_not_mix() -> None:
    one, other = ProgressFiles(), ProgressFiles()
    assert not {*one.renew(1)[0].values()} & {*other.renew(1)[0].values()}
    one.remove()
    other.remove()


class FakeReporter:
    def __init__(self) -> None:
        self.latest = Report(AgentState.RUNNING, datetime.now(UTC), 1)
        self.told: list[tuple[int, bool]] = []

    def progress(self, progress: Progress, *, at_once: bool) -> None:
        self.told.append((progress.step, at_once))


def test_only_changes_are_told_and_the_first_of_a_round_at_once(files: ProgressFiles) -> None:
    reporter = FakeReporter()
    monitor = ProgressMonitor(files, reporter)  # type: ignore[arg-type]
    (env,) = files.renew(1)
    monitor.look()
    report_step(env, 1)
    monitor.look()
    monitor.look()
    report_step(env, 2)
    monitor.look()
    reporter.latest = Report(AgentState.RUNNING, datetime.now(UTC), 2)  # told before its processes start
    monitor.look()
    (env,) = files.renew(1)
    monitor.look()
    report_step(env, 2)
    monitor.look()
    assert reporter.told == [(1, True), (2, False), (2, True)]


def test_processes_learn_their_files_from_their_environment(files: ProgressFiles, tmp_path: Path) -> None:
    specs = TrackedLogsSpecs(DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.ERR), files)
    envs: dict[int, dict[str, str]] = {0: {}, 1: {}}
    dest = specs.reify(envs)
    assert envs[0][ENV_PROGRESS_FILE] != envs[1][ENV_PROGRESS_FILE]
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[1]
    assert specs.latest.stderrs == dest.stderrs
    assert specs.root_log_dir == str(tmp_path)
