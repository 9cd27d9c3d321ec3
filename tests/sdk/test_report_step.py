from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlr import progress, report_step

ROOT = Path(__file__).parents[2]


@pytest.fixture
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "step"
    path.write_bytes(bytes(16))
    monkeypatch.setenv(progress.ENV_PROGRESS_FILE, str(path))
    monkeypatch.setattr(progress, "_slot", None)
    return path


def test_step_and_time_are_in_the_file(progress_file: Path) -> None:
    before = time.monotonic()
    report_step(41)
    report_step(42)
    step, at = struct.unpack("qd", progress_file.read_bytes())
    assert step == 42
    assert before <= at <= time.monotonic()


def test_outside_of_dlr_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress.ENV_PROGRESS_FILE, raising=False)
    monkeypatch.setattr(progress, "_slot", None)
    report_step(1)
    report_step(2)


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_a_file_that_cannot_be_used_never_stops_training(
    content: bytes | None, progress_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_file.unlink() if content is None else progress_file.write_bytes(content)
    report_step(1)


def test_is_cheap_enough_for_every_step(progress_file: Path) -> None:
    report_step(0)
    best_seconds = min(_time_calls(10_000) for _ in range(5))
    assert best_seconds / 10_000 < 5e-6  # ten times what it takes, for busy machines


def _time_calls(count: int) -> float:
    started_at = time.perf_counter()
    for step in range(count):
        report_step(step)
    return time.perf_counter() - started_at


def test_import_is_light() -> None:
    code = "import sys, dlr; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    output = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "typer", "pydantic", "urllib3", "asyncio"} & set(output.stdout.split())
