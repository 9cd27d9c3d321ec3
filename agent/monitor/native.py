"""Stacks with the frames of C and C++, by py-spy, where the image has it and the kernel lets it trace."""

from __future__ import annotations

import itertools
import re
import shutil

from agent.monitor.profile import PY_SPY, ProfileError, run_py_spy
from crds.agent_report import MAX_FRAMES

DUMP_SECONDS = 20.0
"""For one process: py-spy reads the symbols of torch's libraries, which are large."""

NATIVE_AT_ONCE = 4
"""Processes of one agent that are read side by side: each reader takes a core, and memory for the symbols."""

_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|(?P<id>\d+)) .*?(?:: "(?P<name>[^"]*)")?$')
_ADDRESS = re.compile(r"^0x[0-9a-f]+ ")


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
