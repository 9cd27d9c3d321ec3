"""Notices that the kernel has killed processes of this container for its memory.

Such a process gets SIGKILL like any other. The container and this agent go on, unless the kubelet has the
whole container killed at once (cgroup v2 without `singleProcessOOMKill`), and then the Pod says so. The
cgroup counts such kills, as `oom_kill` in memory.events (v2) or memory.oom_control (v1).
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.monitor.accounting import own_group

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_NO_LIMIT = 1 << 60
"""Version 1 has at least this number where there is no limit."""


class OomWatch:
    """Notices kills since the last `reset`, or since it was made.

    Args:
        group: the folder of the container's own memory cgroup; None if it has none, and then nothing is
        noticed.
    """

    def __init__(self, group: Path | None) -> None:
        self._group = group
        self._kills = self._count()

    @classmethod
    def of_pod(cls, pod_uid: str) -> OomWatch:
        """Watch the Pod that this process is in."""
        return cls(own_group("memory", pod_uid))

    def reset(self) -> None:
        self._kills = self._count()

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process since the last reset."""
        kills = self._count()
        return kills is not None and self._kills is not None and kills > self._kills

    def limit_bytes(self) -> int | None:
        """Return the memory limit; None where there is none."""
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limit = int(self._read(name))
            except ValueError:  # not there, or "max"
                continue
            if limit < _NO_LIMIT:
                return limit
        return None

    def limit_text(self) -> str:
        """Return the memory limit in brackets, for a sentence; "" where there is none."""
        limit = self.limit_bytes()
        return "" if limit is None else f" (limit {limit / 2**20:.0f} MiB)"

    def _count(self) -> int | None:
        """Return the number of kills, or None where the kernel does not count them."""
        found = _KILLS.search(self._read("memory.events") or self._read("memory.oom_control"))
        return int(found[1]) if found else None

    def _read(self, name: str) -> str:
        try:
            return (self._group / name).read_text() if self._group else ""
        except OSError:
            return ""
