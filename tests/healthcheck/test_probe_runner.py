"""Whatever a probe does, the runner returns, and says what it was."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crds.agent_report import ProbeEnding
from healthcheck.probes import runner
from healthcheck.probes.runner import Cancellation, Cancelled, Probe, run, run_together

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process that was killed may live on for a while."""
    monkeypatch.setattr(runner, "ABANDON_SECONDS", 300.0)


def misbehaving(how: str, *arguments: str, timeout_seconds: float = 300.0) -> Probe:
    return Probe("misbehaving", (f"--how={how}", *arguments), timeout_seconds, package="tests.healthcheck")


@pytest.mark.parametrize(
    ("how", "ending", "reason"),
    [
        ("chat", ProbeEnding.PASSED, ""),
        ("fail", ProbeEnding.FAILED, "the product is wrong"),
        ("no-torch", ProbeEnding.UNAVAILABLE, "the Python package torch is not installed here"),
        ("exit", ProbeEnding.CRASHED, "ended without a report"),
        (
            "raise",
            ProbeEnding.CRASHED,
            "exit code 1: RuntimeError: CUDA error: uncorrectable ECC error encountered",
        ),
    ],
)
def test_every_end_is_a_result(how: str, ending: ProbeEnding, reason: str) -> None:
    report = run(misbehaving(how))
    assert (report.ending, report.reason) == (ending, reason)


def test_a_crash_leaves_its_signal_and_where_it_was() -> None:
    result = run(misbehaving("SIGSEGV"))
    assert (result.ending, result.signal) == (ProbeEnding.CRASHED, "SIGSEGV")
    assert "in measure" in result.stderr_tail


def test_a_hang_is_ended_and_leaves_where_it_was() -> None:
    for seconds in (4, 16, 64, 256):  # of which it takes some to begin, more on a busy machine
        result = run(misbehaving("sleep", timeout_seconds=seconds))
        assert result.ending is ProbeEnding.TIMED_OUT and re.fullmatch(r"no end after \d+ s", result.reason)
        if "in measure" in result.stderr_tail:
            return
    pytest.fail(result.stderr_tail)


def test_a_process_that_cannot_end_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "OVERTIME_SECONDS", 0.2)
    for seconds in (0.8, 4, 16, 64, 256):  # on a busy machine it may be starved before it stops itself
        result = run(misbehaving("stop", timeout_seconds=seconds))
        if result.ending is not ProbeEnding.UNAVAILABLE:
            break
    assert result.ending is ProbeEnding.TIMED_OUT


def test_a_probe_that_takes_long_to_leave_its_devices_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    exits_within = runner._exits_within

    def too_late(pid: int, seconds: float) -> bool:
        assert exits_within(pid, 300.0)
        return False

    monkeypatch.setattr(runner, "_exits_within", too_late)
    assert run(misbehaving("")).ending is ProbeEnding.PASSED


def test_a_probe_that_fails_in_time_has_failed_however_long_it_takes_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits_within = runner._exits_within

    def slowly(pid: int, seconds: float) -> bool:
        monkeypatch.setattr(runner._Running, "_seconds", lambda _: 400.0)
        return exits_within(pid, 300.0)

    monkeypatch.setattr(runner, "_exits_within", slowly)
    assert run(misbehaving("raise", timeout_seconds=300.0)).ending is ProbeEnding.CRASHED


def test_a_probe_that_closes_its_output_and_stays_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ABANDON_SECONDS", 0.2)
    report = run(misbehaving("close"))
    assert report.ending is ProbeEnding.TIMED_OUT and report.reason.startswith("no end after")


def test_nothing_that_a_probe_started_outlives_it(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    assert run(misbehaving("leave-a-child", f"--file={left}")).ending is ProbeEnding.PASSED
    await_end(int(left.read_text()))


def test_when_one_of_a_group_fails_the_others_are_ended_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WITNESS_SECONDS", 0.2)
    failed, other = run_together([misbehaving("fail"), misbehaving("sleep")])
    assert failed.ending is ProbeEnding.FAILED
    assert other.reason == "ended, because one that it worked with had failed"


@contextlib.contextmanager
def cancellation(answers: Iterator[bool]) -> Iterator[tuple[int, Cancellation]]:
    """A descriptor that wakes the runner, which is then told the next answer."""
    fd = os.eventfd(0, os.EFD_NONBLOCK)

    def is_cancelled() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(fd)
        return next(answers)

    yield fd, Cancellation(fd, is_cancelled)
    os.close(fd)


def test_a_cancelled_probe_is_ended_at_once_with_all_that_it_started(tmp_path: Path) -> None:
    pids = [tmp_path / "a", tmp_path / "b"]
    probes = [misbehaving("leave-a-child", f"--file={path}", "--then-sleep") for path in pids]

    def cancel(fd: int) -> None:
        while not all(path.exists() and path.read_text() for path in pids):
            time.sleep(0.01)
        os.eventfd_write(fd, 1)

    with cancellation(iter([False, True])) as (fd, cancelled):
        threading.Thread(target=cancel, args=(fd,), daemon=True).start()
        with pytest.raises(Cancelled):
            run_together(probes, cancelled)
    for path in pids:
        await_end(int(path.read_text()))


def test_a_wake_up_that_cancels_nothing_changes_nothing() -> None:
    with cancellation(iter([False, False, True])) as (fd, not_cancelled):
        os.eventfd_write(fd, 1)
        assert run(misbehaving(""), not_cancelled).ending is ProbeEnding.PASSED


def test_what_is_cancelled_already_is_not_started(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    with cancellation(iter([True])) as (_, cancelled), pytest.raises(Cancelled):
        run(misbehaving("leave-a-child", f"--file={left}"), cancelled)
    assert not left.exists()


def test_a_probe_does_not_outlive_a_runner_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = (
        "from healthcheck.probes.runner import Probe, run\n"
        f"run(Probe('misbehaving', ('--how=say-pid', '--file={told}', '--then-sleep'), 600, 'tests.healthcheck'))"
    )
    root = str(Path(__file__).parents[2])
    runner_process = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    deadline = time.monotonic() + 300
    while not (told.exists() and told.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    runner_process.kill()
    runner_process.wait()
    await_end(int(told.read_text()))


def await_end(pid: int) -> None:
    deadline = time.monotonic() + 300
    while _lives(pid):
        assert time.monotonic() < deadline, f"{pid} lives on"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_probe_finds_its_modules_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong argparse')")
    monkeypatch.chdir(tmp_path)
    assert run(misbehaving("")).ending is ProbeEnding.PASSED
