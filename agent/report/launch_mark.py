"""The line in the container's termination message while a launcher has begun and no report was taken.

A launcher that dies before its agent's first report may leave no trace: a pipe or a wrapper in front of it
ends with exit code 0. The kubelet reports the line, and the controller does not call that a success
(`reconcilers/observed/ending.py`). The injected launchers write it as their first act
(`dlr/bundle/agent.py`). The first process of a container needs no line: its exit code is the container's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from crds.names import ENV_TERMINATION_LOG, HAS_BEGUN


def write(environ: Mapping[str, str], launcher: str) -> None:
    """Write the line, unless it is there, or this is the container's first process."""
    file = _file(environ)
    if file is None or os.getpid() == 1 or HAS_BEGUN in _text(file):
        return
    with contextlib.suppress(OSError), file.open("a") as log:
        log.write(f"dlr: {launcher} {HAS_BEGUN}\n")


def clear(environ: Mapping[str, str]) -> None:
    """Delete the line; what else is in the message stays."""
    file = _file(environ)
    if file is None or HAS_BEGUN not in (text := _text(file)):
        return
    kept = "".join(line for line in text.splitlines(keepends=True) if HAS_BEGUN not in line)
    with contextlib.suppress(OSError):
        file.write_text(kept)


def _file(environ: Mapping[str, str]) -> Path | None:
    """The file of the termination message; None where the kubelet has made none."""
    path = Path(environ.get(ENV_TERMINATION_LOG) or os.devnull)
    return path if path.is_file() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
