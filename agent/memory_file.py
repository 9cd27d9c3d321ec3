"""Files in memory alone (memfd_create(2))."""

from __future__ import annotations

import errno
import os

MFD_NOEXEC_SEAL = 0x0008
"""A flag since Linux 6.3: nobody can execute the file. Hardened nodes allow no other (vm.memfd_noexec=2)."""


def memory_file(name: str) -> int:
    """Open a file in memory that cannot be executed.

    Args:
        name: what /proc/PID/fd shows.

    Raises:
        OSError: the kernel gives none.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC)  # an older kernel, which has no such flag
