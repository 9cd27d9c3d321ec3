"""Training processes of a Pod, found in /proc by the variables that the agent gives them.

Standard library only: on the embedded cluster the harness calls it, elsewhere its source is piped into
`kubectl exec POD -- python3 - POD_UID`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class TrainingProcess:
    """`started` is in clock ticks since boot: with the pid it names one process for ever."""

    pid: int
    started: int
    local_rank: int


def environment(pid: int) -> dict[str, str]:
    """The variables a process was started with; none when it is gone or not ours."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def parent(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    stat = _stat(pid)
    return stat[1] if stat else 0


def number_inside(pid: int) -> int:
    """The process's number in its own PID namespace, as it sees it (proc(5), NSpid); 0 when it is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, all its threads included; 0 if it is gone."""
    used = 0
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            used += int((task / "schedstat").read_text().split()[0])  # in ns; /proc/PID/stat has 10 ms steps
    except OSError:
        return 0.0
    return used / 1e9


def all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def training_processes(pod_uid: str) -> list[TrainingProcess]:
    """The Pod's living training processes by local rank, without children of their own."""
    parents: dict[int, int] = {}
    found: dict[int, TrainingProcess] = {}
    for pid in all_pids():
        variables = environment(pid)
        stat = _stat(pid)
        if stat is None or stat[0] == "Z" or variables.get("DLR_POD_UID") != pod_uid:
            continue
        if "LOCAL_RANK" in variables:
            parents[pid] = stat[1]
            found[pid] = TrainingProcess(pid, stat[2], int(variables["LOCAL_RANK"]))
    tops = [process for pid, process in found.items() if parents[pid] not in found]
    return sorted(tops, key=lambda process: process.local_rank)


def mentioning(text: str) -> dict[int, str]:
    """Command lines by pid of living processes that name `text` in it or in a variable; not ourselves."""
    found = {}
    for pid in all_pids():
        stat = _stat(pid)
        if pid == os.getpid() or stat is None or stat[0] == "Z":
            continue
        line = command(pid)
        if text in line or any(text in value for value in environment(pid).values()):
            found[pid] = line
    return found


def command(pid: int) -> str:
    """The command line, its words with spaces between; empty when the process is gone or has ended."""
    try:
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps([asdict(process) for process in training_processes(sys.argv[1])]))
