"""What rank 0 has left, as its agent finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.monitor import progress
from agent.monitor.progress import ProgressFiles
from agent.monitor.stepping import ProcessStart
from crds.progress_record import ENV_PROGRESS_FILE
from dlr import result
from tests.cli.scripted import Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "time", Clock())


def test_only_rank_0_counts_and_only_its_last_start(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ProgressFiles()
    try:
        for local_rank, env in enumerate(files.renew(2, ProcessStart())):
            monkeypatch.setenv(ENV_PROGRESS_FILE, env[ENV_PROGRESS_FILE])
            result.report_result({"of": local_rank})
        assert files.result({0: 1, 1: 0}) == '{"value":{"of":1}}'
        assert files.result({0: 2, 1: 3}) is None
        files.renew(2, ProcessStart())
        assert files.result({0: 1, 1: 0}) is None
    finally:
        files.remove()


@pytest.mark.parametrize("written", [b"no json", b"\xff", b'"' + b"x" * 20_000 + b'"', b"[" * 9_000])
def test_what_the_api_server_would_not_take_is_left_out(written: bytes) -> None:
    files = ProgressFiles()
    try:
        (env,) = files.renew(1, ProcessStart())
        Path(f"{env[ENV_PROGRESS_FILE]}.result").write_bytes(written)
        assert files.result({0: 0}) is None
    finally:
        files.remove()
