"""The task of a `dlr map`, for its workers, and the command for a line."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import asdict, dataclass

FOLDER = "/tmp/dlr-map"
"""Folder of the ConfigMaps in a Pod."""
TASK_FILE = "task.json"
SET_NAME = "lines"
"""Name of the shard set."""

ENV_LINE = "DLR_LINE"
ENV_NUMBER = "DLR_LINE_NUMBER"

_PLACE = re.compile(r"\{(#?)\}")
_PLAIN_START = re.compile(r"\s*([A-Za-z0-9_./+:@%,-]+)(?=\s|$)")


@dataclass(frozen=True)
class LineTask:
    command: str
    """Command for `sh -c`, with `{}` for the line."""
    size: int
    """Number of lines; 0 if only the workers can read them."""
    digest: str
    """Digest of the lines; empty if only the workers can read them."""
    slots: int
    """Number of commands that a worker runs at a time."""
    retries: int
    max_failed: int
    lines_path: str = ""
    """Path of the lines in a worker, if they are not in ConfigMaps."""
    log_folder: str = ""
    """Folder for each line's output; empty for the Pod's log."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LineTask:
        """Parse a task; raise TypeError or ValueError if the text is invalid."""
        return cls(**json.loads(text))


def command_for(template: str, line: bytes, number: int) -> str:
    """Return the shell command for a line.

    `{}` becomes the line, quoted for the shell as one argument, and `{#}` its number. If the template has
    neither, the line is appended as the last argument.

    Args:
        number: number of the line, counted from 1.
    """
    quoted = shlex.quote(os.fsdecode(line))
    if _PLACE.search(template) is None:
        return f"{template} {quoted}"
    return _PLACE.sub(lambda place: str(number) if place[1] else quoted, template)


def program_of(template: str) -> str | None:
    """Return the program that a template starts; None if only a shell can find it."""
    found = _PLAIN_START.match(template)
    return found[1] if found else None


def log_path(folder: str, number: int) -> str:
    """Return the path of a line's output; a folder has a thousand files."""
    return f"{folder}/{number // 1000:04}/{number:07}.log"
