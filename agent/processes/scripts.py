"""Scripts below a shell, which get the signal that ends a training process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from agent.processes.orphans import open_exit_fd
from agent.processes.stat import ProcessStat, descendants


def above_scripts(leaders: Collection[int]) -> list[int]:
    """Return these processes and their descendants, down to the first Python process of each line.

    A shell does not pass signals on, so its children get the signal too. Processes that a script needs in
    order to save at SIGTERM do not: its own children, such as the data loaders of the current step, and
    readers of its output, such as `tee`.
    """
    if all(map(_is_python, leaders)):
        return list(leaders)
    children: dict[int, list[ProcessStat]] = {}
    for process in descendants():
        if not process.ended:
            children.setdefault(process.parent, []).append(process)
    found: list[int] = []
    for leader in leaders:
        line = [leader]
        for pid in line:
            if not _is_python(pid):
                line += [child.pid for child in children.get(pid, ()) if child.session == leader]
        readers = _readers_of_scripts(line)
        found += [pid for pid in line if pid == leader or pid not in readers]
    return found


def _readers_of_scripts(line: Sequence[int]) -> set[int]:
    """Return the programs after a script in a pipeline, which end with it."""
    written = {pipe for pid in line if _is_python(pid) for pipe in _pipes(pid, 1, 2)}
    readers = set()
    for pid in line:
        if not _is_python(pid) and not written.isdisjoint(_pipes(pid, 0)):
            readers.add(pid)
            written |= _pipes(pid, 1, 2)
    return readers


def _pipes(pid: int, *fds: int) -> set[str]:
    found = set()
    for fd in fds:
        with contextlib.suppress(OSError):  # it has ended, is another user's, or has closed it
            found.add(str(Path(f"/proc/{pid}/fd/{fd}").readlink()))
    return {each for each in found if each.startswith("pipe:")}


def _is_python(pid: int) -> bool:
    """Return whether a process is a Python interpreter; True for another user's, whose program is hidden."""
    try:
        program = Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return True
    return program == Path("/proc/self/exe").readlink() or program.name.startswith("python")


def send(pids: Collection[int], signum: signal.Signals) -> None:
    """Send a signal to processes; one may have ended meanwhile, or be another user's."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def await_ends(pids: Sequence[int], deadline: float) -> None:
    """Wait for the ends of processes, until a time of the monotonic clock.

    Args:
        pids: parents before their children, which become ours once the parents have ended.
    """
    for pid in pids:
        exit_fd = open_exit_fd(pid)
        poll = select.poll()
        poll.register(exit_fd, select.POLLIN)
        poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
        os.close(exit_fd)
