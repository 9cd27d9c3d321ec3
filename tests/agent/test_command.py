"""The process of `dlr exec`."""

from __future__ import annotations

import os
import signal
import sys
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
