"""A profile of one training process, small enough for its container's log: by torch.profiler, or by py-spy.

Torch's own is for processes that were forked (agent/warm/profiler.py). py-spy, where the image has it, works
for any, as far as the kernel lets it trace: that takes root, or the capability SYS_PTRACE.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.monitor.stacks import handles, offering_process
from crds.agent_report import MAX_FRAMES, MAX_PROFILE_BYTES
from crds.progress_record import PROFILE_ERROR, PROFILE_FILE, PROFILE_SECONDS, profile_signal

EXPORT_SECONDS = 60.0
"""For the process to begin, and to write its trace, both of which it does between two lines of its script."""
SHORTER = 3
"""So many times a profile that is too large is tried again, for a shorter time."""
MARGIN = 0.7
LEAST_SECONDS = 0.05
POLL_SECONDS = 0.02
PY_SPY = "py-spy"
TORCH = "torch.profiler"
DUMP_SECONDS = 20.0
"""For one process: py-spy reads the symbols of torch's libraries, which are large."""
NATIVE_AT_ONCE = 4
"""Processes of one agent that are read side by side: each reader takes a core, and memory for the symbols."""
_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|(?P<id>\d+)) .*?(?:: "(?P<name>[^"]*)")?$')
_ADDRESS = re.compile(r"^0x[0-9a-f]+ ")


class ProfileError(Exception):
    """No profile can be had; the message says why, in a clause."""


@dataclass(frozen=True)
class Profile:
    by: str
    seconds: float
    data: bytes
    """Chrome's trace format, compressed by gzip."""
    note: str = ""


@dataclass(frozen=True)
class Subject:
    """The process that is looked at."""

    pid: int
    stacks_file: Path
    stacks_signal: int


def take(subject: Subject, seconds: float, by: str) -> Profile:
    """Profile it for so long; less, if what comes of it is too large to be told.

    Args:
        by: TORCH or PY_SPY; anything else: torch where the process offers it.

    Raises:
        ProfileError: neither can be had.
    """
    offers = _trainer_of(subject)
    if by == PY_SPY or (by != TORCH and offers is None):
        return _fitting(seconds, PY_SPY, lambda duration: _by_py_spy(subject.pid, duration))
    if offers is None:
        raise ProfileError("the process offers no torch.profiler, which takes one that `dlr run` has forked")
    trainer = offers
    return _fitting(seconds, TORCH, lambda duration: _by_torch(subject, trainer, duration))


def _fitting(seconds: float, by: str, record: Callable[[float], bytes]) -> Profile:
    wanted, note = seconds, ""
    for _ in range(SHORTER + 1):
        data = record(seconds)
        if len(data) <= MAX_PROFILE_BYTES:
            return Profile(by, seconds, data, note)
        note = f"{wanted:g} s are more than {MAX_PROFILE_BYTES >> 10} KiB, which is all that can be told"
        seconds = max(MARGIN * seconds * MAX_PROFILE_BYTES / len(data), LEAST_SECONDS)
    room = MAX_PROFILE_BYTES >> 10
    raise ProfileError(f"{seconds:.2g} s of it still have {len(data) >> 10} KiB, and {room} KiB can be told")


def _trainer_of(subject: Subject) -> int | None:
    """The process that offers torch's profiler; None if none does."""
    with contextlib.suppress(OSError, ValueError):
        trainer = offering_process(subject.stacks_file, subject.pid)
        if handles(trainer, profile_signal(subject.stacks_signal)):
            return trainer
    return None


def _by_torch(subject: Subject, trainer: int, seconds: float) -> bytes:
    folder, signum = subject.stacks_file.parent, profile_signal(subject.stacks_signal)
    made, failed = folder / PROFILE_FILE, folder / PROFILE_ERROR
    for path in (made, failed):
        path.unlink(missing_ok=True)
    deadline = time.monotonic() + seconds + EXPORT_SECONDS
    try:
        (folder / PROFILE_SECONDS).write_text(str(seconds))
        os.kill(trainer, signum)
        while time.monotonic() < deadline:
            if made.exists():
                return made.read_bytes()
            if failed.exists():
                raise ProfileError(failed.read_text())
            os.kill(trainer, 0)
            time.sleep(POLL_SECONDS)
    except OSError as error:
        raise ProfileError(f"the process has ended meanwhile, or its folder is full: {error}") from error
    raise ProfileError(
        f"it did not come out of a call within {EXPORT_SECONDS:g} s; py-spy needs no help of it"
    )


def _by_py_spy(pid: int, seconds: float) -> bytes:
    program = shutil.which(PY_SPY)
    if program is None:
        raise ProfileError("it is no process that `dlr run` has forked, and the image has no py-spy")
    with tempfile.TemporaryDirectory(prefix="dlr_profile_") as folder:
        file = Path(folder) / "trace.json"
        limit = EXPORT_SECONDS + seconds
        duration = str(max(round(seconds), 1))
        asked = [program, "record", "--format", "chrometrace", "--duration", duration, "--pid", str(pid)]
        run_py_spy([*asked, "--output", str(file)], limit)
        return gzip.compress(file.read_bytes())


def run_py_spy(command: list[str], limit_seconds: float) -> str:
    """What it prints.

    Raises:
        ProfileError: it fails, or takes too long.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfileError(f"py-spy: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason"]
        raise ProfileError(f"py-spy says {lines[-1]}")
    return done.stdout


def native_frames(pid: int) -> str:
    """The main thread's frames, one a line, the innermost first, as many as there is room for.

    Raises:
        ProfileError: there is no py-spy, or it may not trace; the message is a clause.
    """
    program = shutil.which(PY_SPY)
    if program is None:
        raise ProfileError("the image has no py-spy")
    lines = parse(run_py_spy([program, "dump", "--native", "--pid", str(pid)], DUMP_SECONDS), pid)
    if not lines:
        raise ProfileError("py-spy shows no thread")
    text = "\n".join(lines)
    return text if len(text) <= MAX_FRAMES else text[:MAX_FRAMES].rpartition("\n")[0]


def parse(dump: str, pid: int) -> list[str]:
    """The main thread's lines in py-spy's text, without the addresses of functions that have no name."""
    threads: dict[bool, list[str]] = {}
    lines: list[str] = []
    for line in dump.splitlines():
        if thread := _THREAD.match(line):
            is_main = thread["name"] == "MainThread" or thread["id"] == str(pid)
            lines = threads.setdefault(is_main, [])
        elif line.startswith("    "):
            lines.append(_ADDRESS.sub("", line.strip()))
    chosen = threads.get(True) or threads.get(False) or []
    return [line for line, _ in itertools.groupby(chosen)]
