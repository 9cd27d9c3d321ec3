"""Processes by /proc/PID/stat (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessStat:
    """One process."""

    pid: int
    parent: int
    session: int
    ended: bool
    """It is a zombie: its parent has not collected it yet."""
    ticks: int
    """CPU time so far, in clock ticks."""
    started: int
    """Start time, in clock ticks since boot, which distinguishes it from an earlier process with its id."""
    resident_bytes: int


def stat_of(pid: int | str, proc: str = "/proc") -> ProcessStat | None:
    """Read one process; return None if it has ended."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 (faster; each restart waits for it)
            fields = file.read().rpartition(b")")[2].split()  # the name before it may contain anything
        state, parent, session, user, system, started, pages = (fields[n] for n in (0, 1, 3, 11, 12, 19, 21))
    except (OSError, ValueError, IndexError):
        return None
    ticks, resident_bytes = int(user) + int(system), int(pages) * _PAGE_BYTES
    return ProcessStat(
        int(pid), int(parent), int(session), state in (b"Z", b"X"), ticks, int(started), resident_bytes
    )


def descendants(root: int | None = None) -> list[ProcessStat]:
    """Return all descendants of a process, or of this one; parents come before their children."""
    children: dict[int, list[ProcessStat]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessStat] = []
    parents = [os.getpid() if root is None else root]
    for parent in parents:
        found += children.get(parent, ())
        parents += [process.pid for process in children.get(parent, ())]
    return found


def _processes() -> Iterator[ProcessStat]:
    for name in os.listdir("/proc"):  # noqa: PTH208 (a third of the time of iterdir)
        if name.isdigit() and (process := stat_of(name)) is not None:
            yield process
