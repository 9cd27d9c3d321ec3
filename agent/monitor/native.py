"""Stacks with the frames of C and C++, by py-spy.

The image needs py-spy, and the kernel has to let it trace: that takes root, or the capability SYS_PTRACE.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

from crds.agent_report import MAX_FRAMES

PY_SPY = "py-spy"
DUMP_SECONDS = 20.0
"""For one process: py-spy reads the symbols of torch's libraries, which are large."""
AT_ONCE = 4
"""Processes of one agent that are read side by side: each reader takes a core, and memory for the symbols."""
_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|(?P<id>\d+)) .*?(?:: "(?P<name>[^"]*)")?$')
_ADDRESS = re.compile(r"^0x[0-9a-f]+ ")


class NoNativeFramesError(Exception):
    """py-spy is missing, or may not trace; the message is a clause."""


def native_frames(pid: int) -> str:
    """Return the main thread's frames, one a line, the innermost first, as many as there is room for.

    Raises:
        NoNativeFramesError: they cannot be had.
    """
    program = shutil.which(PY_SPY)
    if program is None:
        raise NoNativeFramesError("the image has no py-spy")
    lines = parse(_output_of([program, "dump", "--native", "--pid", str(pid)]), pid)
    if not lines:
        raise NoNativeFramesError("py-spy shows no thread")
    text = "\n".join(lines)
    return text if len(text) <= MAX_FRAMES else text[:MAX_FRAMES].rpartition("\n")[0]


def parse(dump: str, pid: int) -> list[str]:
    """Return the main thread's lines of py-spy's text, without addresses of functions that have no name."""
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


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeFramesError(f"py-spy: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason"]
        raise NoNativeFramesError(f"py-spy says {lines[-1]}")
    return done.stdout
