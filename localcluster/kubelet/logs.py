"""A container's termination message: what it wrote, or the end of its log."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 2048
MAX_LINES = 80


MAX_MESSAGE_BYTES = 4096


def termination_message(path: Path) -> str:
    """Return the last 4 KiB of a container's termination message file."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MAX_MESSAGE_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def log_tail(path: Path) -> str:
    """Return the end of a log, as for FallbackToLogsOnError: at most 80 lines and 2 KiB."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - 4 * MAX_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return ""
    texts = [parts[3] for line in lines[-MAX_LINES:] if len(parts := line.split(b" ", 3)) == 4]
    return b"\n".join(texts)[-MAX_BYTES:].decode(errors="replace")
