"""Stacks of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.monitor import stacks
from agent.monitor.dump import innermost_place, waits_for_others
from agent.monitor.stacks import DEFAULT_SIGNAL, Capture, capture, signal_number, wait_state
from crds.progress_record import RECORD_BYTES
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]

TRAIN = """
import faulthandler, os, threading, time, dlr
def stuck():
    print("here", flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
dlr.report(1)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
stuck()
"""
DEADLOCK = "script0.py:7 in stuck: lock.acquire()"


class Trainers:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running = ExitStack()
        self.pids: dict[int, int] = {}
        self.files: dict[int, Path] = {}

    def start(self, code: str, *command: str) -> subprocess.Popen[str]:
        rank = len(self.pids)
        self.files[rank] = self._directory / f"stacks.{rank}"
        step_file = self._directory / f"step.{rank}"
        step_file.write_bytes(bytes(RECORD_BYTES))
        script = self._directory / f"script{rank}.py"
        script.write_text(code)
        process = subprocess.Popen(
            [*command, sys.executable, str(script)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "DLR_PROGRESS_FILE": str(step_file),
                "DLR_STACKS_FILE": str(self.files[rank]),
                "DLR_STACKS_SIGNAL": str(DEFAULT_SIGNAL),
            },
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.callback(process.wait)
        self._running.callback(_kill_group, process.pid)
        assert process.stdout is not None
        self._running.callback(process.stdout.close)
        assert process.stdout.readline() == "here\n"
        self.pids[rank] = process.pid
        return process

    def capture(self) -> dict[int, Capture]:
        return capture(self.pids, self.files, DEFAULT_SIGNAL)

    def close(self) -> None:
        self._running.close()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@pytest.fixture
def trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainers]:
    monkeypatch.setattr(stacks, "PATIENCE_SECONDS", 300.0)
    monkeypatch.setattr(stacks, "is_complete", lambda dump: "in <module>\n" in dump)
    running = Trainers(tmp_path)
    yield running
    running.close()


def test_process_in_a_deadlock_shows_the_line_and_lives_on(trainers: Trainers) -> None:
    process = trainers.start(TRAIN)
    while not innermost_place(trainers.capture()[0].frames).endswith(DEADLOCK):
        pass  # it is on its way there
    for _ in range(2):
        shown = trainers.capture()[0]
        assert innermost_place(shown.frames).endswith(DEADLOCK)
        assert [f.function for f in shown.frames] == ["stuck", "<module>"]
        assert shown.text.count("(most recent call first)") == 2, "the whole dump has all threads"
        assert not waits_for_others(shown.frames) and not shown.computes
    assert process.poll() is None


def test_process_without_the_sdk_is_left_alone_and_said_to_be(trainers: Trainers) -> None:
    process = trainers.start("import time\nprint('here', flush=True)\ntime.sleep(600)")
    wait_for(lambda: "sleeping" in wait_state(process.pid))
    shown = trainers.capture()[0]
    assert shown.frames == ()
    assert shown.note.startswith("no Python stack, which takes a call of dlr.report; the process is sleeping")
    assert process.poll() is None


def test_stopped_process_is_not_waited_for_long(trainers: Trainers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "PATIENCE_SECONDS", 0.5)
    stopped, other = trainers.start(TRAIN), trainers.start(TRAIN)
    shown_at: list[float] = []

    def clock() -> float:
        """It stands until the other process has written its stacks, however busy the machine is."""
        if not shown_at:
            if "in <module>\n" not in trainers.files[1].read_text():
                return 0.0
            shown_at.append(time.monotonic())
        return time.monotonic() - shown_at[0]

    monkeypatch.setattr(stacks, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    stopped.send_signal(signal.SIGSTOP)
    while "stopped" not in wait_state(stopped.pid):
        time.sleep(0.01)
    shown = trainers.capture()
    assert "no Python stack within 0.5 s; the process is stopped by a signal" in shown[0].note
    assert shown[1].frames, "the others show theirs"
    assert other.poll() is None


def test_the_users_choice_of_signal_counts_if_it_is_one() -> None:
    assert signal_number({}) == DEFAULT_SIGNAL
    assert signal_number({"DLR_STACKS_SIGNAL": "10"}) == 10
    for nonsense in ("", "0", "65", "SIGUSR1"):
        assert signal_number({"DLR_STACKS_SIGNAL": nonsense}) == DEFAULT_SIGNAL
