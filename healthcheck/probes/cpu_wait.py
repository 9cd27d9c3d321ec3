"""Time for which a session's threads had no CPU: on a busy machine, a probe that does not end is no hang."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def seconds_without_cpu(session: int, proc: Path = PROC) -> float:
    """Return the longest time that a thread of the session was ready to run and had no CPU; 0 if unknown.

    The second number of `schedstat` has it in nanoseconds.
    https://docs.kernel.org/scheduler/sched-stats.html
    """
    waits = [0]
    for process in proc.glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[3]) == session:
                waits += [int(each.read_text().split()[1]) for each in process.glob("task/*/schedstat")]
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or the kernel keeps no such figures
    return max(waits) / 1e9
