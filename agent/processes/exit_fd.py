"""A file descriptor that tells of the end of a process, so that one `poll` can wait for many of them."""

from __future__ import annotations

import os
import threading


def open_exit_fd(pid: int) -> int:
    """Return a descriptor that becomes readable when the child `pid` ends; the caller closes it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        # conda's Pythons are built for kernels before 5.3, and lack the function. Such a kernel does not know
        # it, and a sandbox may not let it through.
        return _exit_fd_by_thread(pid)


def _exit_fd_by_thread(pid: int) -> int:
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # It has ended, and somebody has collected it.
        finally:
            os.close(writer)

    threading.Thread(target=wait, name=f"dlr-exit-{pid}", daemon=True).start()
    return reader
