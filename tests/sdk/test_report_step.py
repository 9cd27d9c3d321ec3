from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlr import checkpoint_saved, progress, report_step

ROOT = Path(__file__).parents[2]


@pytest.fixture
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "step"
    path.write_bytes(bytes(32))
    monkeypatch.setenv(progress.ENV_PROGRESS_FILE, str(path))
    monkeypatch.setattr(progress, "_slot", None)
    return path


def test_step_and_time_are_in_the_file(progress_file: Path) -> None:
    before = time.monotonic()
    report_step(41)
    report_step(42)
    step, at, _, saved_at = struct.unpack("qdqd", progress_file.read_bytes())
    assert step == 42
    assert before <= at <= time.monotonic()
    assert saved_at == 0.0, "no checkpoint yet"


def test_checkpoint_is_behind_the_step_and_leaves_it_as_it_is(progress_file: Path) -> None:
    report_step(42)
    step_told = progress_file.read_bytes()[:16]
    before = time.monotonic()
    checkpoint_saved(40)
    content = progress_file.read_bytes()
    assert content[:16] == step_told
    step, at = struct.unpack_from("qd", content, 16)
    assert step == 40
    assert before <= at <= time.monotonic()


def test_an_older_agent_still_learns_the_step(progress_file: Path) -> None:
    progress_file.write_bytes(bytes(16))
    report_step(42)
    checkpoint_saved(42)
    content = progress_file.read_bytes()
    assert len(content) == 16
    assert struct.unpack("qd", content)[0] == 42


def test_a_script_with_an_older_dlr_writes_the_first_half_only(progress_file: Path) -> None:
    with progress_file.open("r+b") as file:
        struct.pack_into("qd", mmap.mmap(file.fileno(), 16), 0, 42, 1.5)  # as it did it
    assert struct.unpack("qdqd", progress_file.read_bytes()) == (42, 1.5, 0, 0.0)


def test_a_thread_that_saves_may_be_the_first_to_tell(progress_file: Path) -> None:
    at_once = threading.Barrier(2)

    def tell(say: Callable[[int], None], step: int) -> None:
        at_once.wait(10)
        say(step)

    threads = [threading.Thread(target=tell, args=pair) for pair in ((report_step, 7), (checkpoint_saved, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert struct.unpack("qdqd", progress_file.read_bytes())[::2] == (7, 5)


def test_outside_of_dlr_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress.ENV_PROGRESS_FILE, raising=False)
    monkeypatch.setattr(progress, "_slot", None)
    report_step(1)
    checkpoint_saved(1)
    report_step(2)


@pytest.mark.parametrize("content", [None, b"", b"short", bytes(24)])
def test_a_file_that_cannot_be_used_never_stops_training(
    content: bytes | None, progress_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_file.unlink() if content is None else progress_file.write_bytes(content)
    report_step(1)
    checkpoint_saved(1)


@pytest.mark.parametrize("say", [report_step, checkpoint_saved])
def test_is_cheap_enough_for_every_step(progress_file: Path, say: Callable[[int], None]) -> None:
    say(0)
    best_seconds = min(_time_calls(say, 10_000) for _ in range(5))
    assert best_seconds / 10_000 < 5e-6  # ten times what it takes, for busy machines


def _time_calls(say: Callable[[int], None], count: int) -> float:
    started_at = time.perf_counter()
    for step in range(count):
        say(step)
    return time.perf_counter() - started_at


def test_import_is_light() -> None:
    code = "import sys, dlr; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    output = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "typer", "pydantic", "urllib3", "asyncio"} & set(output.stdout.split())
