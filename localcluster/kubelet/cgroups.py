"""Memory limits of containers, by the kernel's cgroups, where this host lets us make any.

All groups of a cluster are in one folder of the memory controller: below this process's own group, so that
they stay within its limits, or as near to it as is allowed. Both versions of cgroups are served. Over its
limit, version 1 loses one process, version 2 the whole container, as on a node with a kubelet.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from localcluster.resource import JSON

PROC = Path("/proc/self")
REMOVAL_SECONDS = 30.0
"""The kernel lets go of a group a moment after its last process, which may have to wait for a CPU to end."""
REMOVAL_RETRY_SECONDS = 0.01
PROBE_BYTES = 64 * 2**20

log = logging.getLogger(__name__)


class Version(Enum):
    V1 = 1
    V2 = 2


@dataclass(frozen=True)
class Files:
    """File names of one version of cgroups."""

    limit: str
    swap_limit: str
    oom_counter: str
    """A file with a line `oom_kill N`: processes that the kernel killed for the group's limit."""


FILES = {
    Version.V1: Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
    Version.V2: Files("memory.max", "memory.swap.max", "memory.events"),
}


@dataclass(frozen=True)
class Hierarchy:
    """The mount point of the memory controller, and this process's own group in it."""

    version: Version
    mounted_at: Path
    own: Path

    def parents(self) -> Iterator[Path]:
        """Groups that may be allowed to have ours below them, best first.

        In version 2 a group with processes can have no groups with limits below it, unless it is the root.
        """
        if self.version is Version.V1:
            yield self.own
            return
        inner = self.own
        while inner.is_relative_to(self.mounted_at):
            yield inner
            inner = inner.parent


def find_hierarchy(mounts: str, groups: str) -> Hierarchy | None:
    """Find it in /proc/self/mountinfo and /proc/self/cgroup; None without a memory controller."""
    own: dict[str, str] = {}
    for line in groups.splitlines():
        _number, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    unified: Hierarchy | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mounted_at = before.split()[3:5]
        kind, _source, options = after.split()[:3]
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            return _hierarchy(Version.V1, root, mounted_at, own["memory"])
        if kind == "cgroup2" and "" in own:
            unified = unified or _hierarchy(Version.V2, root, mounted_at, own[""])
    return unified


def _hierarchy(version: Version, root: str, mounted_at: str, own: str) -> Hierarchy | None:
    """None if our own group is not below what is mounted."""
    if not Path(own).is_relative_to(root) or ".." in Path(own).parts:
        return None
    return Hierarchy(version, Path(mounted_at), Path(mounted_at) / Path(own).relative_to(root))


@dataclass(frozen=True)
class MemoryGroup:
    """One container's."""

    folder: Path
    version: Version
    mounted_at: Path

    def described(self) -> JSON:
        """Return the group for the shim, which shows it to the container as the controller's root."""
        return {
            "processes": str(self.folder / "cgroup.procs"),
            "counter": str(self.folder / FILES[self.version].oom_counter),
            "folder": str(self.folder),
            "shownAt": str(self.mounted_at),
        }

    def remove(self) -> None:
        """Remove the group after its last process was killed; may wait a moment for the kernel."""
        _remove(self.folder)


class MemoryGroups:
    """The groups of one cluster. `open_groups` makes it."""

    def __init__(self, folder: Path, hierarchy: Hierarchy) -> None:
        self._folder = folder
        self._hierarchy = hierarchy
        self._numbers = itertools.count(1)

    def make(self, limit_bytes: int) -> MemoryGroup:
        """A group whose processes together may use so much. OSError where the kernel refuses."""
        version = self._hierarchy.version
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        group = MemoryGroup(folder, version, self._hierarchy.mounted_at)
        try:
            (folder / FILES[version].limit).write_text(str(limit_bytes))
            with suppress(FileNotFoundError, PermissionError):  # a kernel without swap accounting
                swap_bytes = limit_bytes if version is Version.V1 else 0  # version 1 counts both in one
                (folder / FILES[version].swap_limit).write_text(str(swap_bytes))
            if version is Version.V2:
                with suppress(FileNotFoundError):  # before Linux 4.19
                    (folder / "memory.oom.group").write_text("1")
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Remove all that is left: no container may live any more."""
        _clear(self._folder)


class NoGroups(Exception):
    """This host lets us make none; says why."""


def open_groups(home: Path) -> MemoryGroups | None:
    """Open the groups of the cluster in this folder; None, and a line in the log, if the host allows none."""
    try:
        return _open(home)
    except (NoGroups, OSError) as error:
        log.warning("limits.memory of containers are not kept here: %s", error)
        return None


def _open(home: Path) -> MemoryGroups:
    hierarchy = find_hierarchy((PROC / "mountinfo").read_text(), (PROC / "cgroup").read_text())
    if hierarchy is None:
        raise NoGroups("no memory controller is mounted")
    name = f"dlr-{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
    refusals = []
    for parent in hierarchy.parents():
        folder = parent / name
        try:
            groups = _open_below(parent, folder, hierarchy)
        except OSError as error:
            refusals.append(str(error))
            _clear(folder)
        else:
            log.info("memory limits are kept version=%s folder=%s", hierarchy.version.value, folder)
            return groups
    raise NoGroups("; ".join(refusals))


def _open_below(parent: Path, folder: Path, hierarchy: Hierarchy) -> MemoryGroups:
    _clear(folder)
    folder.mkdir()
    if hierarchy.version is Version.V2:
        for each in (parent, folder):
            (each / "cgroup.subtree_control").write_text("+memory")
    groups = MemoryGroups(folder, hierarchy)
    _try(groups)
    return groups


def _try(groups: MemoryGroups) -> None:
    """Put a process into a group, for that is what may be forbidden."""
    group = groups.make(PROBE_BYTES)
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            (group.folder / "cgroup.procs").write_text(str(process.pid))
            process.communicate()
    finally:
        group.remove()


def _clear(folder: Path) -> None:
    """Remove a group and those below it, such as a killed cluster leaves."""
    try:
        below = [entry for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return
    for entry in below:
        _clear(entry)
    _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                log.warning("memory cgroup stays folder=%s error=%s", folder, error.strerror)
                return
            time.sleep(REMOVAL_RETRY_SECONDS)
        else:
            return
