"""Processes that training processes leave behind: daemons, data loaders, and others that outlive their
parents.

The agent is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): a descendant whose parent ends becomes the
agent's child, even in a session or process group of its own. As a container's first process it also gets
unrelated ones, which a postStart hook or `kubectl exec` left running. So it only kills processes that are
recognised as descendants of a training process: by process id, parent, session, or environment, in which each
training process has a variable that children inherit (proc(5), /proc/PID/environ).
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
"""Number of attempts to kill all descendants, after which those that fork faster are given up."""

EXEC_SECONDS = 0.05
"""Longest wait for a process that has no environment yet."""
EXEC_LOOK_SECONDS = 0.001


class Orphans:
    """Ends and collects processes that training processes left behind.

    Args:
        marker: prefix of an environment variable, `NAME=value`, that only this agent's training processes
        have. kept_sessions: returns the ids of our helpers' sessions, other than our own.
    """

    def __init__(self, marker: str, kept_sessions: Callable[[], Collection[int]] = tuple) -> None:
        self._marker = os.fsencode(marker)
        self._kept_sessions = kept_sessions
        self.living_on: Callable[[], Collection[int]] = tuple
        """Returns the ids of training processes that live on, and are spared."""
        self._sessions: set[int] = set()
        """Sessions of rounds, including the ids of processes that have not begun their sessions yet."""

    def started(self, pids: Iterable[int]) -> None:
        """Note training processes; each begins a session, whose id is its own."""
        self._sessions.update(pids)

    def sessions_below(self, pids: Collection[int]) -> set[int]:
        """Return the sessions of training processes and of all their descendants. These outlive a parent."""
        return _with_descendants(descendants(), {*pids}, {*pids}, self._our_sessions())[1]

    def kill(self, killed: Collection[int] = (), sessions: Collection[int] | None = None) -> list[int]:
        """Send SIGKILL to training processes and all their descendants, except those that live on.

        Descendants of a process that lives on are recognised by parent and session. Its daemons that have
        another session, and whose parent has ended, are killed too.

        Args:
            killed: ids of processes that have got a SIGKILL already.
            sessions: the only sessions whose processes, with their descendants, are killed; None for all.

        Returns:
            The process ids, including zombies; parents come before their children. All of them become
            children of this process, for `collect` to collect.
        """
        found: dict[int, None] = {}
        done = set(killed)
        for _ in range(MAX_LOOKS):
            descendants = self._of_rounds() if sessions is None else self._in_sessions({*sessions})
            found.update(dict.fromkeys(descendant.pid for descendant in descendants))
            fresh = {d.pid for d in descendants if not d.ended} - done
            if not fresh:  # a process with a pending SIGKILL cannot fork any more
                return list(found)
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            done |= fresh
        logger.error("processes of the last round fork faster than they can be killed: %s", sorted(fresh))
        return list(found)

    def reap(self, spared: Collection[int]) -> None:
        """Collect zombies whose exit codes are not needed.

        Processes of our own session are left out, and helpers that began a session. A process that was forked
        ahead in its warm parent's session, and was killed, is collected.

        Args:
            spared: ids of processes whose exit codes are needed.
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

    def _in_sessions(self, sessions: set[int]) -> list[ProcessStat]:
        found = descendants()
        pids, _ = _with_descendants(found, set(), sessions, self._our_sessions())
        return [d for d in found if d.pid in pids]

    def _of_rounds(self) -> list[ProcessStat]:
        found = descendants()
        ours = self._our_sessions()
        living_on = set(self.living_on())
        spared, _ = _with_descendants(found, living_on, living_on, ours)
        marked = {d.pid for d in found if d.pid in self._sessions or self._is_marked(d)}
        pids, sessions = _with_descendants(found, marked - spared, self._sessions - living_on, ours)
        # The id of a session without processes may be reused by an unrelated one.
        self._sessions = (sessions | living_on) & (pids | spared | {d.session for d in found})
        return [d for d in found if d.pid in pids - spared]

    def _is_marked(self, process: ProcessStat) -> bool:
        """Return whether the environment of a process has the marker.

        During execve(2) the environment reads as empty, even after Popen has returned.
        """
        deadline = time.monotonic() + EXEC_SECONDS
        while True:
            try:
                variables = Path(f"/proc/{process.pid}/environ").read_bytes()
            except OSError:
                return False  # it has ended meanwhile, or is another user's
            if variables or process.ended or time.monotonic() >= deadline:
                return variables.startswith(self._marker) or b"\0" + self._marker in variables
            time.sleep(EXEC_LOOK_SECONDS)

    def _our_sessions(self) -> set[int]:
        return {os.getsid(0), *self._kept_sessions()}


def _with_descendants(
    found: Sequence[ProcessStat], pids: set[int], sessions: set[int], ours: set[int]
) -> tuple[set[int], set[int]]:
    """Return processes with all their descendants, by parent and session, and their sessions.

    Args:
        ours: sessions that do not make their processes descendants.
    """
    before = -1
    while len(pids) > before:
        before = len(pids)
        sessions = sessions | ({d.session for d in found if d.pid in pids} - ours)
        pids = pids | {d.pid for d in found if d.session in sessions or d.parent in pids}
    return pids, sessions


def collect(pids: Sequence[int]) -> None:
    """Wait for the end of killed processes; those that were collected elsewhere are skipped.

    Args:
        pids: parents before their children, which become ours only then.
    """
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def adopt(parents: str) -> None:
    """Become a subreaper, if that is allowed, so that left-behind processes can be ended.

    Args:
        parents: name of the parents, for the warning if it is not allowed.
    """
    try:
        become_subreaper()
    except OSError as error:
        logger.warning("daemons that %s leave behind cannot be ended: prctl: %s", parents, error)


def become_subreaper() -> None:
    """Make orphans among our descendants become our children. May be called again.

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
        # conda's Pythons are built for kernels before 5.3 and lack the function. Those kernels lack the call,
        # and a sandbox may refuse it.
        return _exit_fd_by_thread(pid)


def _exit_fd_by_thread(pid: int) -> int:
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # it has ended, and was collected
        finally:
            os.close(writer)

    threading.Thread(target=wait, name=f"dlr-exit-{pid}", daemon=True).start()
    return reader
