"""Processes that this agent has started and that belong to no PContext for now."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

logger = logging.getLogger(__name__)

KILLED_SECONDS = 5.0
"""Time for a process to end that was killed; a wedged device may keep it longer."""


class ProcessHandle(Protocol):
    """As much of `subprocess.Popen` as a forked process has, too."""

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
        alive = _signal_and_wait(alive, signal.SIGTERM, grace_seconds)
    for process in _signal_and_wait(alive, signal.SIGKILL, KILLED_SECONDS):
        logger.error("process %d survives SIGKILL: giving it up", process.pid)


def _signal_and_wait(
    processes: Sequence[ProcessHandle], signum: signal.Signals, seconds: float
) -> list[ProcessHandle]:
    """Send a signal to all, and return those that have not ended after so long."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
            (os.killpg if signum is signal.SIGKILL and _leads(process.pid) else os.kill)(process.pid, signum)
    return [process for process in processes if not _ends(process, deadline)]


def _leads(pid: int) -> bool:
    """Whether it leads its process group, which it does from its start on but for the first moment."""
    return os.getpgid(pid) == pid


def _ends(process: ProcessHandle, deadline: float) -> bool:
    try:
        process.wait(max(deadline - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True
