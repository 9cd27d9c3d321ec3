"""The process of `dlr exec`."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from pathlib import Path

import pytest

from agent import exec as execution
from agent.exec import Command
from agent.processes.orphans import Orphans
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real


def test_what_outlives_sigkill_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a process in a system call that cannot be interrupted; here it gets no signal."""
    monkeypatch.setattr(execution, "ABANDON_SECONDS", 0.2)
    monkeypatch.setattr(Orphans, "kill", lambda _: [])
    stuck = Command(["sleep", "3600"], os.environ, "NAME=nobody's")
    stuck.start({})
    process = stuck._process
    assert process is not None
    monkeypatch.setattr(process, "terminate", lambda: None)
    try:
        stuck.end(0.1)
        assert process.poll() is None and stuck.exit_fd is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(300)


SAVES = """
trap 'echo > saving; until [ -e go ]; do sleep 0.02; done; echo > saved; exit 0' TERM
echo > begun
while true; do sleep 0.02; done
"""


def test_what_a_shell_runs_has_the_time_to_save(tmp_path: Path) -> None:
    """The shell itself ends at once; timeout(1) makes a process group of its own."""
    (tmp_path / "script").write_text(SAVES)
    command = Command(
        ["sh", "-c", f"cd {tmp_path}; timeout 600 sh script; true"], os.environ, "NAME=nobody's"
    )
    command.start({})
    wait_for((tmp_path / "begun").exists)
    poll = select.poll()
    assert command.exit_fd is not None
    poll.register(command.exit_fd, select.POLLIN)
    ending = threading.Thread(target=command.end, args=(300,))
    ending.start()
    wait_for((tmp_path / "saving").exists)
    assert poll.poll(300_000)
    (tmp_path / "go").touch()
    ending.join(300)
    assert (tmp_path / "saved").exists()


PRINTS = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.2)
    print("saved", flush=True)
    pathlib.Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path("begun").touch()
while True:
    time.sleep(0.02)
"""


def test_what_a_script_prints_while_it_saves_has_a_reader(tmp_path: Path) -> None:
    """Without `tee` it would fail: Broken pipe."""
    (tmp_path / "script").write_text(PRINTS)
    words = ["sh", "-c", f"cd {tmp_path}; {sys.executable} script | cat | tee log"]
    command = Command(words, os.environ, "NAME=nobody's")
    command.start({})
    wait_for((tmp_path / "begun").exists)
    command.end(300)
    assert (tmp_path / "saved").exists()
