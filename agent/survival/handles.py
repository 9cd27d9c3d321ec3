"""Processes of this agent that currently belong to no PContext."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from agent.processes.processes import kill_group

logger = logging.getLogger(__name__)

KILLED_SECONDS = 5.0
"""Time limit for a killed process to end; a wedged device may keep it longer."""


class ProcessHandle(Protocol):
    """The part of `subprocess.Popen` that a forked process has, too."""

    @property
    def pid(self) -> int: ...
    @property
    def args(self) -> Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def end(processes: Iterable[ProcessHandle], grace_seconds: float = 0.0) -> None:
    """Send SIGTERM if there is a grace, kill what is left after it with its process group, and wait."""
    alive = [process for process in processes if process.poll() is None]
    if grace_seconds > 0:
        for process in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
                os.kill(process.pid, signal.SIGTERM)
        alive = _still_alive(alive, grace_seconds)
    for process in alive:
        kill_group(process.pid)
    for process in _still_alive(alive, KILLED_SECONDS):
        logger.error("process %d survives SIGKILL: giving it up", process.pid)


def _still_alive(processes: Sequence[ProcessHandle], seconds: float) -> list[ProcessHandle]:
    """Return the processes that have not ended after this time."""
    deadline = time.monotonic() + seconds
    return [process for process in processes if not _ends(process, deadline)]


def _ends(process: ProcessHandle, deadline: float) -> bool:
    try:
        process.wait(max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True
