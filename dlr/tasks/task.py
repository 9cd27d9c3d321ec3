"""The task of a `dlr map`, which its workers read; and a line's command."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import asdict, dataclass

FOLDER = "/tmp/dlr-map"
"""Where the ConfigMaps are in a Pod."""
TASK_FILE = "task.json"
SET_NAME = "lines"
"""The shard set."""

ENV_LINE = "DLR_LINE"
ENV_NUMBER = "DLR_LINE_NUMBER"

_PLACE = re.compile(r"\{(#?)\}")
_PLAIN_START = re.compile(r"\s*([A-Za-z0-9_./+:@%,-]+)(?=\s|$)")


@dataclass(frozen=True)
class LineTask:
    command: str
    """The command for `sh -c`, with `{}` for the line."""
    size: int
    """Number of lines; 0 if only the workers can read them."""
    digest: str
    """The digest of the lines; empty if only the workers can read them."""
    slots: int
    """Commands that a worker runs at a time."""
    retries: int
    max_failed: int
    lines_path: str = ""
    """The path of the lines in a worker, if not beside this file."""
    log_folder: str = ""
    """The folder for each line's output; empty for the Pod's log."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LineTask:
        """Raises TypeError or ValueError if that is none."""
        return cls(**json.loads(text))


def command_for(template: str, line: bytes, number: int) -> str:
    """The shell's text for a line.

    `{}` becomes the line, quoted for the shell, so that whatever it says it is one argument, and `{#}` its
    number. Where neither is in the template, the line is its last argument.

    Args:
        number: the line's, from 1 on.
    """
    quoted = shlex.quote(os.fsdecode(line))
    if _PLACE.search(template) is None:
        return f"{template} {quoted}"
    return _PLACE.sub(lambda place: str(number) if place[1] else quoted, template)


def program_of(template: str) -> str | None:
    """The program that a template starts; None if only a shell can find it."""
    found = _PLAIN_START.match(template)
    return found[1] if found else None


def log_path(folder: str, number: int) -> str:
    """Return the path of a line's output: a thousand files a folder."""
    return f"{folder}/{number // 1000:04}/{number:07}.log"
