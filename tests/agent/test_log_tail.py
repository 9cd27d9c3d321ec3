"""The logs of training processes, as they come into the Pod's log."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.monitor import log_tail
from agent.monitor.log_tail import copy_log
from agent.monitor.round_logs import cut_middle

MIB = 1 << 20


def copied(log: Path, **options: Any) -> str:
    """The copy of a log whose process has ended."""
    dst, finished = io.StringIO(), threading.Event()
    finished.set()
    copy_log("[rank0]: ", str(log), dst, finished, 0.01, **options)
    return dst.getvalue()


class Process:
    """Writes a piece whenever the copy waits for it."""

    def __init__(self, log: Path, *pieces: bytes) -> None:
        self._log, self._pieces = log, list(pieces)
        log.touch()

    def is_set(self) -> bool:
        return not self._pieces

    def wait(self, _seconds: float) -> None:
        with self._log.open("ab") as file:
            file.write(self._pieces.pop(0))


def test_a_line_is_written_as_a_whole_since_other_processes_write_to_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(log_tail, "READ_BYTES", 20)
    dst: Any = SimpleNamespace(write=written.append, flush=lambda: None)
    process: Any = Process(tmp_path / "log", b"one\ntwo\nthree\nfour\nfi", b"ve\nsi", b"", b"x\n", b"x" * 30)
    copy_log("", str(tmp_path / "log"), dst, process, 0.01)
    text = "".join(written)
    assert text == "one\ntwo\nthree\nfour\nfive\nsix\n" + "x" * 30 + "\n"
    assert written[3:7] == ["four\n", "five\n", "si", "x\n"], "in parts where the rest does not come soon"


def test_what_was_cut_out_before_it_was_copied_is_left_out_with_a_line(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(b"first\n" + b"x" * 30 * MIB + b"\nlast\n")
    cut_middle(log, MIB)
    tracemalloc.start()
    try:
        text = copied(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\0" not in text
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("[rank0]: first", "[rank0]: last")
    assert "bytes are left out" in lines[2]
    assert len(text) < MIB
    assert peak < 8 * MIB, "a hole of 29 MiB was read"


def test_only_wanted_lines_are_copied(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("a loss\nb\nanother loss\n")
    wanted: Callable[[str], bool] = lambda line: "loss" in line  # noqa: E731
    assert copied(log, log_line_filter=wanted) == "[rank0]: a loss\n[rank0]: another loss\n"


@given(data=st.binary(max_size=200), size=st.integers(1, 20))
def test_whatever_a_process_writes_is_copied_as_text(
    data: bytes, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.getbasetemp() / "stderr.log"
    log.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_tail, "READ_BYTES", size)
        text = copied(log)
    expected = data.replace(b"\0", b"").decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = expected.split("\n")
    whole = lines[:-1] + ([lines[-1]] if lines[-1] else [])
    assert text == "".join(f"[rank0]: {line}\n" for line in whole)
