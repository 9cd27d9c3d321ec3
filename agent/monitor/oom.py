"""Detects that the kernel has killed processes of this container for its memory.

The process gets SIGKILL, and the container and this agent go on, unless the kernel kills the whole container
(cgroup v2 without the kubelet's `singleProcessOOMKill`), which the Pod's status then shows. The cgroup counts
these kills as `oom_kill` in memory.events (v2) or memory.oom_control (v1).
"""

from __future__ import annotations

import re
from pathlib import Path

from agent.monitor.accounting import own_group

_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_NO_LIMIT = 1 << 60
"""Least number by which version 1 expresses that there is no limit."""


class OomWatch:
    """Detects kills since its creation or the last `reset`.

    Args:
        group: folder of the container's own memory cgroup; None if it has none, so that no kill is detected.
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
        """Return the memory limit; None if there is none."""
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limit = int(self._read(name))
            except ValueError:  # not there, or "max"
                continue
            if limit < _NO_LIMIT:
                return limit
        return None

    def limit_text(self) -> str:
        """Return the memory limit in brackets, for a sentence; "" if there is none."""
        limit = self.limit_bytes()
        return "" if limit is None else f" (limit {limit / 2**20:.0f} MiB)"

    def _count(self) -> int | None:
        """Return the number of kills; None if the kernel does not count them."""
        found = _KILLS.search(self._read("memory.events") or self._read("memory.oom_control"))
        return int(found[1]) if found else None

    def _read(self, name: str) -> str:
        try:
            return (self._group / name).read_text() if self._group else ""
        except OSError:
            return ""
