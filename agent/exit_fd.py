"""Noticing the end of a process: a descriptor that can be polled."""

from __future__ import annotations

import os
import threading


def open_exit_fd(pid: int) -> int:
    """A descriptor that becomes readable when the child `pid` ends."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return _exit_fd_by_thread(pid)  # Linux before 5.3, or a sandbox that does not let it through


def _exit_fd_by_thread(pid: int) -> int:
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # ended, and already collected
        finally:
            os.close(writer)

    threading.Thread(target=wait, name=f"dlr-exit-{pid}", daemon=True).start()
    return reader
