"""Native stacks: what py-spy prints becomes frames that compare between ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.monitor import native
from agent.monitor.hang_guard import _with_native
from agent.monitor.native import native_frames, parse
from crds.agent_report import RankStack

DUMP = """\
Process 13022: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 13040 (idle): "pin_memory"
    wait (threading.py:324)

Thread 13022 (idle): "MainThread"
    0x7fab7aaa3e96 (libc.so.6)
    0x7fab7aaaed90 (libc.so.6)
    c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so)
    all_reduce (distributed_c10d.py:2501)
    <module> (train.py:4)
"""
FRAMES = [
    "(libc.so.6)",
    "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so)",
    "all_reduce (distributed_c10d.py:2501)",
    "<module> (train.py:4)",
]


def test_main_thread_counts_and_addresses_do_not() -> None:
    assert parse(DUMP, 13022) == FRAMES
    assert parse(DUMP.replace('"MainThread"', '"renamed"'), 13022) == FRAMES
    assert parse(DUMP.replace("Thread 13022 ", "Thread 0x7F "), 1) == FRAMES
    assert parse("Error: no such process", 1) == []


@pytest.mark.real
def test_python_frames_stay_where_there_are_no_native_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stack = RankStack(3, 9, True, "all_reduce\nmain")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(native, "DUMP_SECONDS", 300.0)
    told = _with_native(stack, tmp_path / "none", os.getpid())
    assert told.frames == "all_reduce\nmain\n(no native frames: the image has no py-spy)" and told.rank == 3
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{DUMP}'\n")
    program.chmod(0o755)
    assert _with_native(stack, None, 13022).frames == "\n".join(FRAMES)
    program.write_text(f"#!/bin/sh\necho '{DUMP.replace('c10d', 'x' * 2_000)}'\n")
    assert native_frames(13022) == "(libc.so.6)", "whole lines, as many as there is room for"
