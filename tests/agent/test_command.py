"""The process of `dlr exec`."""

from __future__ import annotations

import os
import signal
import time

import pytest

from agent import exec as execution
from agent.exec import Command
from agent.processes.orphans import Orphans


def test_what_outlives_sigkill_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a process in a system call that cannot be interrupted; here it gets no signal."""
    monkeypatch.setattr(execution, "ABANDON_SECONDS", 0.2)
    monkeypatch.setattr(Orphans, "kill", lambda _: [])
    stuck = Command(["sleep", "60"], os.environ, "NAME=nobody's")
    stuck.start({})
    process = stuck._process
    assert process is not None
    monkeypatch.setattr(process, "terminate", lambda: None)
    try:
        began = time.monotonic()
        stuck.end(0.1)
        assert time.monotonic() - began < 50 and stuck.exit_fd is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(120)
