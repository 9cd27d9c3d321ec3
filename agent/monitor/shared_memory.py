"""Failures for want of shared memory: /dev/shm is a file system of its own, which is small by default."""

from __future__ import annotations

import re
import shutil

PATH = "/dev/shm"
DEFAULT_BYTES = 64 << 20
"""What container runtimes give where the Pod template mounts nothing there."""

_TEXTS = re.compile(
    # torch's DataLoader, of a worker that wrote beyond the end of the file system
    r"DataLoader worker \(pid.*\) is killed by signal: Bus error"
    r"|out of shared memory|insufficient shared memory"
    # torch's shared tensors (MapAllocator), and NCCL's transport within a node
    r"|unable to (?:open|allocate|resize|mmap) [^\n]*shared memory|[Ee]rror while creating shared memory"
)


def hint(message: str, log_tail: str, signal: str | None) -> str:
    """One sentence on what to do, if this failure is for want of shared memory; "" for all others.

    Args:
        message: of the failure.
        log_tail: the end of the process's log.
        signal: the name of the signal that ended it, if one did.
    """
    try:
        size = shutil.disk_usage(PATH).total
    except OSError:
        return ""
    bus_error = signal == "SIGBUS" and size <= DEFAULT_BYTES
    if not (bus_error or _TEXTS.search(message) or (signal and _TEXTS.search(log_tail))):
        return ""
    return (
        f"{PATH} has {size / 2**20:.0f} MiB here, which data loaders with workers and NCCL share: mount an "
        f"emptyDir with `medium: Memory` at {PATH} in the Pod template."
    )
