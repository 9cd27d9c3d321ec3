from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import agent.run
from agent import environment
from agent.environment import InvalidEnvironmentError, ensure_temporary_directory


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose root file system cannot be written to, and that has no emptyDir."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()


def test_without_any_directory_there_is_one_sentence(
    read_only: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "SHARED_MEMORY", "/nonexistent")
    with pytest.raises(InvalidEnvironmentError, match="mount an emptyDir at /tmp"):
        ensure_temporary_directory({})


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a worker, and an agent that changes nothing of this process."""
    for name in ("JOB_NAME", "NAMESPACE", "WORKER_NAME", "POD_UID"):
        monkeypatch.setenv(f"DLR_{name}", "x")
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    monkeypatch.setenv("DLR_JOB_KEY", "00" * 32)
    monkeypatch.setenv("DLR_WORKER_INDEX", "0")
    monkeypatch.setenv("DLR_INCARNATION", "1")
    monkeypatch.setattr(agent.run.signals, "handle", lambda *_: None)
    monkeypatch.setattr(agent.run, "log_to_stderr", lambda: None)
    monkeypatch.setattr(agent.run.open_files, "raise_limit", lambda: None)


def test_an_agent_starts_where_only_shared_memory_can_be_written_to(
    worker: None,
    read_only: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stop_here(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(environment, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    monkeypatch.setattr(agent.run.signals, "handle", stop_here)
    with pytest.raises(SystemExit):
        agent.run.main(["train.py"])
    assert list(tmp_path.glob("torchelastic_*"))
    assert os.environ["TMPDIR"] == str(tmp_path) and len(caplog.records) == 1
