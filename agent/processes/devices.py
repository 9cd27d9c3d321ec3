"""Finds accelerators, and devices of their network, that a process has open."""

from __future__ import annotations

import stat
from pathlib import Path

HARMLESS_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts/",
    "/dev/ptmx",
    "/dev/console",
)
"""Devices that any process may have open. All others may be accelerators or their network: /dev/nvidia*,
/dev/kfd, /dev/dri/*, /dev/davinci* (Ascend), /dev/accel/* (Gaudi, TPU), /dev/neuron*, /dev/infiniband/*, and
those of unknown makers."""


def open_device(pid: int | str = "self") -> str:
    """Return a device that a process has open, other than the harmless ones; "" if there is none.

    Raises:
        OSError: the process has ended, or is another user's.
    """
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name, mode = str(descriptor.readlink()), descriptor.stat().st_mode
        except OSError:
            continue
        if stat.S_ISCHR(mode) and not name.startswith(HARMLESS_DEVICES):
            return name
    return ""
