"""Processes that training processes leave behind: daemons, data loaders, whatever outlives its parent.

The agent is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): a descendant whose parent ends becomes the
agent's child, whatever session or process group it has made for itself. As a container's first process it
gets strangers too, which a postStart hook or `kubectl exec` left running. So only what is shown to stem from
a training process is killed: by the process itself, by its parent, by its session, or by its environment, in
which each training process has a variable that children inherit (proc(5), /proc/PID/environ).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from agent.processes.stat import ProcessStat, descendants

logger = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36
MAX_LOOKS = 20
"""How often descendants are listed to kill them: what forks faster than it can be killed is given up."""

EXEC_SECONDS = 0.05
"""Longest wait for a process that has no environment yet."""
EXEC_LOOK_SECONDS = 0.001


class Orphans:
    """Ends and collects what training processes left behind."""

    def __init__(self, marker: str, kept_sessions: Callable[[], Collection[int]] = tuple) -> None:
        """Take charge of what stems from training processes.

        Args:
            marker: how a variable of theirs begins, `NAME=value`, that only this agent's have.
            kept_sessions: gives the ids of sessions, other than our own, that are our helpers'; asked each
                time.
        """
        self._marker = os.fsencode(marker)
        self._kept_sessions = kept_sessions
        self.living_on: Callable[[], Collection[int]] = tuple
        """Gives the ids of training processes that are spared, since no round that ends has them."""
        self._sessions: set[int] = set()
        """Of rounds, as far as they have been seen, and the ids of processes that are to begin one."""

    def started(self, pids: Iterable[int]) -> None:
        """Take note of training processes; each begins a session, whose id is its own."""
        self._sessions.update(pids)

    def kill(self, killed: Collection[int] = ()) -> list[int]:
        """Send SIGKILL to all that stems from training processes, and to them, but for those that live on.

        What such a process started is told by its parent and its session. A daemon of its that has another
        session, and whose parent has ended, is anybody's.

        Args:
            killed: process ids that have got a SIGKILL already.

        Returns:
            The process ids, and those of zombies there; parents come before their children. All of them
            become children of this process, for `collect` to collect.
        """
        found: dict[int, None] = {}
        done = set(killed)
        for _ in range(MAX_LOOKS):
            descendants = self._of_rounds()
            found.update(dict.fromkeys(descendant.pid for descendant in descendants))
            fresh = {d.pid for d in descendants if not d.ended} - done
            if not fresh:  # A process that has a SIGKILL pending cannot fork any more.
                return list(found)
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            done |= fresh
        logger.error("processes of the last round fork faster than they can be killed: %s", sorted(fresh))
        return list(found)

    def reap(self, spared: Collection[int]) -> None:
        """Collect the exit codes that nobody will ask for.

        These are not those of processes that we started in our own session, and of our helpers that began a
        session. A process that waited ahead in its warm parent's session, and was killed, is nobody's.

        Args:
            spared: process ids whose exit codes somebody does ask for.
        """
        try:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
        except ChildProcessError:
            return
        ours, asked_for = os.getsid(0), {*self._kept_sessions(), *self.living_on(), *spared}
        children = [process for process in descendants() if process.parent == os.getpid()]
        for child in children:
            if child.ended and child.session != ours and child.pid not in asked_for:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)

    def _of_rounds(self) -> list[ProcessStat]:
        found = descendants()
        ours = self._our_sessions()
        living_on = set(self.living_on())
        spared, _ = _with_descendants(found, living_on, living_on, ours)
        marked = {d.pid for d in found if d.pid in self._sessions or self._is_marked(d)}
        pids, sessions = _with_descendants(found, marked - spared, self._sessions - living_on, ours)
        # The id of a session that nobody is in any more may become a stranger's.
        self._sessions = (sessions | living_on) & (pids | spared | {d.session for d in found})
        return [d for d in found if d.pid in pids - spared]

    def _is_marked(self, process: ProcessStat) -> bool:
        """Return whether its environment has the marker.

        In the middle of execve(2) the environment reads as empty, although Popen has returned by then.
        """
        deadline = time.monotonic() + EXEC_SECONDS
        while True:
            try:
                variables = Path(f"/proc/{process.pid}/environ").read_bytes()
            except OSError:
                return False  # It has ended meanwhile, or is another user's.
            if variables or process.ended or time.monotonic() >= deadline:
                return variables.startswith(self._marker) or b"\0" + self._marker in variables
            time.sleep(EXEC_LOOK_SECONDS)

    def _our_sessions(self) -> set[int]:
        return {os.getsid(0), *self._kept_sessions()}


def _with_descendants(
    found: Sequence[ProcessStat], pids: set[int], sessions: set[int], ours: set[int]
) -> tuple[set[int], set[int]]:
    """Return processes with all that stems from them, and their sessions.

    Args:
        ours: sessions by which nothing stems from anything.
    """
    before = -1
    while len(pids) > before:
        before = len(pids)
        sessions = sessions | ({d.session for d in found if d.pid in pids} - ours)
        pids = pids | {d.pid for d in found if d.session in sessions or d.parent in pids}
    return pids, sessions


def collect(pids: Sequence[int]) -> None:
    """Wait for the end of killed processes; those that somebody else has collected are passed over.

    Args:
        pids: parents before their children, since only then are the children ours.
    """
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def adopt(parents: str) -> None:
    """Have what these leave behind become our child, where that is allowed; it can be ended then.

    Args:
        parents: for the warning where it is not.
    """
    try:
        become_subreaper()
    except OSError as error:
        logger.warning("daemons that %s leave behind cannot be ended: prctl: %s", parents, error)


def become_subreaper() -> None:
    """Have whatever our descendants leave behind become our child. May be repeated.

    Raises:
        OSError: the kernel, or a sandbox, does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
