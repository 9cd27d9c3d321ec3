"""Threads without which no round can meet."""

from __future__ import annotations

import os
import signal

import pytest

from agent.connection.listener import run_vital


@pytest.mark.parametrize("dies", [True, False])
def test_the_death_of_a_thread_without_which_no_round_can_meet_ends_the_agent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, dies: bool
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))

    def run() -> None:
        if dies:
            raise OSError(9, "Bad file descriptor")

    run_vital("dlr-store", run)
    assert sent == ([(os.getpid(), signal.SIGTERM)] if dies else [])
    assert ("the agent ends, since its thread dlr-store has died" in caplog.text) is dies
