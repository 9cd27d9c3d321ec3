"""Line in the container's termination message from a launcher's start until the agent's first report.

A launcher that dies before that report may leave no trace, if a pipe or a wrapper around it ends with exit
code
0. The kubelet reports the line, so that the controller does not take this for a success
(`reconcilers/observed/ending.py`). The first process of a container needs no line.

With a message, the kubelet does not fall back on the log. So a launcher that fails before its first report
writes the reason from its log behind the line.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Mapping
from pathlib import Path

from crds.names import ENV_TERMINATION_LOG, HAS_BEGUN

_OURS = ("dlr: ", "dlr run: ", "dlr exec: ")
"""Prefixes of the lines that launchers write."""
_ENCODED = {"encoding": "utf-8", "errors": "surrogateescape"}
"""Encoding of the file; bytes that are not UTF-8 are preserved."""
_MOST_LINES = 20
_MOST_BYTES = 2048
"""Limits of a reason, so that it fits, with the line before it, into the 4 KiB that the kubelet reads."""


def write(environ: Mapping[str, str], launcher: str) -> None:
    """Write the line, unless it exists, or this is the container's first process."""
    file = _file(environ)
    if file is None or os.getpid() == 1 or HAS_BEGUN in _text(file):
        return
    with contextlib.suppress(OSError), file.open("a") as log:
        log.write(f"dlr: {launcher} {HAS_BEGUN}\n")


def explain(environ: Mapping[str, str], why: str | BaseException) -> None:
    """Write the end of a reason behind the line, replacing an earlier one; do nothing without the line."""
    file = _file(environ)
    if file is None or HAS_BEGUN not in (text := _text(file)):
        return
    mark = next(line for line in reversed(text.splitlines()) if HAS_BEGUN in line)
    words = why if isinstance(why, str) else "".join(traceback.format_exception(why))
    end = words.encode(errors="replace")[-_MOST_BYTES:].decode(errors="ignore")
    lines = [line for line in end.splitlines() if line.strip()][-_MOST_LINES:]
    reason = [line if line.startswith(_OURS) else f"dlr: {line}" for line in lines]
    with contextlib.suppress(OSError):
        file.write_text(_without_ours(text) + "".join(f"{line}\n" for line in (mark, *reason)), **_ENCODED)


def clear(environ: Mapping[str, str]) -> None:
    """Delete the line and the reason behind it; other parts of the message stay."""
    file = _file(environ)
    if file is None or HAS_BEGUN not in (text := _text(file)):
        return
    with contextlib.suppress(OSError):
        file.write_text(_without_ours(text), **_ENCODED)


def _without_ours(text: str) -> str:
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if HAS_BEGUN not in line and not line.startswith(_OURS)
    )


def _file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of the termination message; None if the kubelet has not created one."""
    path = Path(environ.get(ENV_TERMINATION_LOG) or os.devnull)
    return path if path.is_file() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(**_ENCODED)
    except OSError:
        return ""
