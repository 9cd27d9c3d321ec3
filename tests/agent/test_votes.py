"""Votes of an agent: where there can be none, and when their time is over."""

from __future__ import annotations

import select
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import SignalException

from agent.session import Session
from agent.supervision.elastic_agent import DlrElasticAgent
from agent.supervision.leaving import Outcome, Votes
from agent.torch_compat import LocalElasticAgent


@pytest.mark.parametrize("scarce", ["records", "epoll"])
def test_without_a_ballot_there_are_no_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    session = SimpleNamespace(environment=SimpleNamespace(pod_ip="127.0.0.1"))
    votes = Votes(cast(Session, session), None, 30.0, 1.0)
    votes.meet(HashStore(), 0, 1)
    line = votes._listener
    assert line is not None
    record = tmp_path / "record"
    if scarce == "epoll":
        record.write_bytes(bytes(4096))

        def too_many(*_: Any) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(select, "epoll", too_many)
    votes.begin([record])
    assert votes.fds() == []
    assert line.fileno() == -1


def test_a_second_signal_begins_no_new_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, graces = [], []

    def stop(_processes: object, begun_at: float) -> Outcome:
        begun.append(begun_at)
        time.sleep(0.05)
        if len(begun) == 1:
            raise SignalException("a second one", sigval=signal.SIGTERM)
        return Outcome.OFF

    agent = DlrElasticAgent.__new__(DlrElasticAgent)
    agent.__dict__ |= {
        "_processes": SimpleNamespace(
            stop=lambda _signal, seconds: graces.append(seconds), join=lambda timeout_seconds: None
        ),
        "_votes": SimpleNamespace(stop=stop, end=lambda: None, await_copied=lambda seconds: None),
        "_shutdown_at": None,
        "_stop_grace_seconds": 10.0,
    }
    monkeypatch.setattr(LocalElasticAgent, "_shutdown", lambda _: None)
    with pytest.raises(SignalException):
        agent._shutdown()
    agent._shutdown()
    assert begun[0] == begun[1]
    assert graces[0] <= 10.0 - 0.1
