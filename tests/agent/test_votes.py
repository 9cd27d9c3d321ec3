"""Where a ballot cannot be opened, training begins without one."""

from __future__ import annotations

import select
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from agent.session import Session
from agent.supervision.leaving import Votes


@pytest.mark.parametrize("scarce", ["records", "epoll"])
def test_without_a_ballot_there_are_no_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    session = SimpleNamespace(environment=SimpleNamespace(pod_ip="127.0.0.1"))
    votes = Votes(cast(Session, session), 30.0, 1.0)
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
