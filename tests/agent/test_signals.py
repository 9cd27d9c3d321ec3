"""A signal ends the agent where it is, but never in the middle of work that must not be left half done."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from agent import signals
from agent.environment import Environment
from agent.logs import log_to_stderr
from agent.monitor.stepping import Figures
from agent.report.elasticworker import last_report
from agent.report.report import AgentFacts, ReportBody
from agent.report.reporter import Reporter
from agent.supervision.post_mortem import process_failure
from crds.agent_report import Accelerators, AgentState

ME = Environment("digits", "default", "digits-worker-0", 0, 1, "uid", "127.0.0.1")


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before, names = signal.getsignal(signal.SIGUSR2), os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    signals.handle("SIGUSR2", signals.raise_signal)
    yield
    signal.signal(signal.SIGUSR2, before)
    os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE")
    if names is not None:
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = names


def test_a_signal_is_raised_where_the_agent_is() -> None:
    with pytest.raises(SignalException) as raised:
        signal.raise_signal(signal.SIGUSR2)
    assert raised.value.sigval is signal.SIGUSR2


def test_deferred_work_is_done_whole_and_the_signal_is_not_lost() -> None:
    done = []
    with pytest.raises(SignalException), signals.deferred():
        with signals.deferred():
            signal.raise_signal(signal.SIGUSR2)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with signals.deferred():
        pass  # it has been raised, once


class Interrupted:
    """An API server, and a log, in the midst of which the agent gets a signal."""

    def __init__(self) -> None:
        self._attempts = 0

    def merge_patch(self, *_: object) -> dict[str, object]:
        self._attempts += 1
        if self._attempts == 1:
            signal.raise_signal(signal.SIGUSR2)
        return {}

    def write(self, _: str) -> None:
        signal.raise_signal(signal.SIGUSR2)

    def flush(self) -> None:
        pass

    def figures(self) -> Figures:
        signal.raise_signal(signal.SIGUSR2)
        return Figures()


@pytest.mark.real
def test_what_goes_on_after_any_error_does_not_go_on_after_a_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted: Any = Interrupted()
    with pytest.raises(SignalException):
        last_report(interrupted, ME)
    monkeypatch.setattr(logging.getLogger("agent"), "handlers", [])
    log_to_stderr()
    (handler,) = logging.getLogger("agent").handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(interrupted)
    with pytest.raises(SignalException):
        logging.getLogger("agent").warning("something")
    first = ReportBody(AgentState.READY, datetime.now(UTC))
    facts = AgentFacts(0, 1, Accelerators("", 0))
    reporter = Reporter(interrupted, ME, facts, first, progress_seconds=1, figures=interrupted.figures)
    with pytest.raises(SignalException):
        reporter.report(AgentState.RUNNING, 1)
    assert reporter.latest.state is AgentState.RUNNING
    (tmp_path / "error.json").touch()
    monkeypatch.setattr(json, "load", interrupted.write)
    with pytest.raises(SignalException):
        process_failure(0, 1, 1, str(tmp_path / "error.json"))


@pytest.mark.real
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_hangup_ends_the_agent_unless_nohup_has_it_ignored(*, is_ignored: bool) -> None:
    script = (
        "import os, signal; from agent import signals\n"
        "signals.handle('SIGTERM,SIGHUP', signals.raise_signal)\n"
        "signals.take_back()\n"
        "print(os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'], flush=True)\n"
        "signal.raise_signal(signal.SIGHUP); print('lives')\n"
        "signals.handle('SIGTERM,SIGHUP', signal.SIG_IGN); signals.handle('SIGHUP', signals.raise_signal)\n"
        "signal.raise_signal(signal.SIGHUP); print('lives')"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    if is_ignored:
        assert (done.stdout.split(), done.returncode) == (["SIGTERM", "lives", "lives"], 0)
    else:
        assert done.stdout.split() == ["SIGTERM,SIGHUP"]
        assert "SignalException: the agent got SIGHUP" in done.stderr
