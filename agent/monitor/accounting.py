"""CPU time and memory of this worker's container, by its cgroups or by its processes.

A container's cgroup counts everything, as its limits do. On the embedded cluster, and wherever else a Pod is
not a container, the cgroup is shared with the whole machine. There the usage of the processes is added up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.processes.stat import TICKS_PER_SECOND, ProcessStat, descendants, stat_of
from crds.names import ENV_POD_UID

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def cpu_source(pod_uid: str) -> CpuGroup | ProcessTree:
    """Choose how to account for the CPU time of the Pod that this process is in."""
    folder = own_group("cpuacct", pod_uid) or own_group("cpu", pod_uid)
    return CpuGroup(folder) if folder else ProcessTree()


def memory_source(pod_uid: str) -> MemoryGroup | ProcessTree:
    """Choose how to account for the memory of the Pod that this process is in."""
    folder = own_group("memory", pod_uid)
    return MemoryGroup(folder) if folder else ProcessTree()


def own_group(controller: str, pod_uid: str, cgroups: Path = CGROUPS, proc: Path = PROC) -> Path | None:
    """Return the folder of this process's cgroup; None if other Pods' processes are in it too.

    Args:
        controller: the cgroup controller that must account there, such as `memory`.
        pod_uid: the uid of the Pod that this process is in.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text()
    except OSError:
        return None
    pid = os.getpid()
    for folder in _folders(controller, groups, cgroups):
        members = _numbers(folder / "cgroup.procs")
        if pid in members:
            return folder if all(_is_of_pod(proc, member, pod_uid) for member in members) else None
    return None


def _folders(controller: str, groups: str, cgroups: Path) -> Iterator[Path]:
    """Yield the folders where the cgroup may be.

    In a container the path may be the one on the host, while only the group itself is mounted.
    """
    paths: dict[str, str] = {}
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    if controller in paths:  # version 1
        mounted_at = cgroups / controller
        yield from (mounted_at / paths[controller], mounted_at)
    elif "" in paths:
        for folder in (cgroups / paths[""], cgroups):
            if (folder / f"{controller}.stat").exists() and (folder / "cgroup.type").exists():
                yield folder  # the root group of version 2 has no type; it is the whole machine's


def _numbers(file: Path) -> set[int]:
    try:
        return {int(word) for word in file.read_text().split()}
    except (OSError, ValueError):
        return set()


def _is_of_pod(proc: Path, pid: int, pod_uid: str) -> bool:
    """Whether a process belongs to the Pod, by its own environment or an ancestor's.

    The first process of a container has the container's environment. A process that has just ended counts as
    the Pod's.
    """
    while pid > 0:
        try:
            variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False
        if f"{ENV_POD_UID}={pod_uid}".encode() in variables:
            return True
        process = stat_of(pid, str(proc))
        pid = process.parent if process is not None else 0
    return False


class CpuGroup:
    """Reads the CPU counter of a cgroup, of either version."""

    def __init__(self, folder: Path) -> None:
        self._nanoseconds = folder / "cpuacct.usage"
        self._stat = folder / "cpu.stat"

    def cpu_seconds(self) -> float:
        if self._nanoseconds.exists():
            return int(self._nanoseconds.read_text()) / 1e9
        return _fields(self._stat)["usage_usec"] / 1e6


class MemoryGroup:
    """Reads the working set of a cgroup of either version: as the kubelet's, without inactive cache."""

    def __init__(self, folder: Path) -> None:
        self._stat = folder / "memory.stat"
        self._used, self._cached = folder / "memory.current", "inactive_file"
        if not self._used.exists():
            self._used, self._cached = folder / "memory.usage_in_bytes", "total_inactive_file"

    def memory_bytes(self) -> int:
        return max(0, int(self._used.read_text()) - _fields(self._stat).get(self._cached, 0))


def _fields(file: Path) -> dict[str, int]:
    """Parse a file whose lines are a name and a number."""
    return {name: int(number) for name, number in (line.split() for line in file.read_text().splitlines())}


class ProcessTree:
    """Adds up the usage of a process and all its descendants.

    Args:
        root: id of the process; None for this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = os.getpid() if root is None else root
        self._ticks: dict[tuple[int, int], int] = {}
        """CPU ticks at the last reading, by process id and start, since ids are reused."""
        self._used_ticks = 0

    def cpu_seconds(self) -> float:
        """Return the CPU time so far; the usage of a process between the last reading and its end is lost."""
        ticks = {(each.pid, each.started): each.ticks for each in self._tree()}
        self._used_ticks += sum(count - self._ticks.get(process, 0) for process, count in ticks.items())
        self._ticks = ticks
        return self._used_ticks / TICKS_PER_SECOND

    def memory_bytes(self) -> int:
        """Return the memory in use. Memory shared by several processes, as by data loaders, counts once."""
        return sum(map(_proportional_bytes, self._tree()))

    def _tree(self) -> list[ProcessStat]:
        own = stat_of(self._root)
        return [*([] if own is None else [own]), *descendants(self._root)]


def _proportional_bytes(process: ProcessStat) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # it ended meanwhile, or the kernel has no such file
    return process.resident_bytes
