"""A container's memory cgroup as its shim handles it: enter it, show it, and read it at the end.

The kubelet makes the group and describes it (`cgroups.MemoryGroup.described`). Like the shim, this imports
only what starts fast.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from localcluster.kubelet import namespaces


class Confinement:
    """Opened before any namespace is entered, whose user might not be allowed to."""

    def __init__(self, group: dict[str, Any]) -> None:
        self._group = group
        self._mounted = False
        self._processes = os.open(group["processes"], os.O_WRONLY | os.O_CLOEXEC)

    def mount(self) -> None:
        """Mount the group in place of the whole machine's; needs a mount namespace."""
        with suppress(OSError):  # the limit holds all the same
            namespaces.bind(self._group["folder"], self._group["shownAt"], read_only=True)
            self._mounted = True

    def enter(self) -> None:
        """This process, and the children that it will have: to them, what is mounted is the root."""
        os.write(self._processes, b"0")
        os.close(self._processes)
        if self._mounted:
            with suppress(OSError):  # a kernel without cgroup namespaces
                namespaces.unshare(namespaces.CLONE_NEWCGROUP)

    def ran_out(self) -> bool:
        """Whether the kernel killed any process of the group for its memory."""
        try:
            with open(self._group["counter"]) as file:  # noqa: PTH123 - pathlib is slow to import
                counts = dict(line.split() for line in file)
        except OSError:
            return False
        return int(counts.get("oom_kill", 0)) > 0

    def remove(self) -> None:
        """If the kernel has not let go of it yet, the kubelet does it later."""
        with suppress(OSError):
            os.rmdir(self._group["folder"])  # noqa: PTH106
