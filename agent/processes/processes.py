"""Training processes of one round: notices their ends at once, and ends them.

torch starts them (a PContext) and would check every `monitor_interval` whether they live. Here each has a
file descriptor that becomes readable when it ends, so that one `poll` waits for all of them and for the world
too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import PContext

from agent.processes.orphans import Orphans, collect, open_exit_fd
from agent.processes.scripts import above_scripts, send
from agent.signals import deferred

logger = logging.getLogger(__name__)

SAVING_GRACE_SECONDS = 30.0
"""Grace for a process that still writes when its grace is over, such as a checkpoint; torch's own grace."""
SAVING_BYTES = 1 << 20
"""Least number of bytes between two looks by which a process counts as writing."""
_LOOK_SECONDS = 1.0

ABANDON_SECONDS = 30.0
"""Time after SIGKILL until a process is given up, as it hangs in the kernel (a wedged device)."""


class TrainingProcesses:
    """Processes of a started PContext, which still collects their exit codes.

    Args:
        pcontext: context that has just been started.
        orphans: ends the processes that these leave behind.
    """

    def __init__(self, pcontext: PContext, orphans: Orphans) -> None:
        self.pcontext = pcontext
        self._orphans = orphans
        self._pids = dict(pcontext.pids())
        orphans.started(self._pids.values())
        self._exit_fds = {rank: open_exit_fd(pid) for rank, pid in self._pids.items()}
        self._exited: dict[int, int] = {}
        self._ends_as: dict[int, int] = {}
        """Exit codes of the scripts of processes that were ended after them, by local rank."""
        self._closing: threading.Thread | None = None
        self._released = False
        self._written: dict[int, int] = {}
        """Bytes written until the last look, by process id."""
        self._below: list[int] = []
        """Living processes below a shell that were signalled, parents before their children."""

    @property
    def pids(self) -> dict[int, int]:
        return self._pids

    @property
    def all_exited(self) -> bool:
        return len(self._exited) == len(self._pids)

    @property
    def exit_codes(self) -> dict[int, int]:
        """Exit codes of ended processes by local rank, as of the last look; a signal is negative."""
        return dict(self._exited)

    def alive(self) -> dict[int, int]:
        """Return the ids of the living processes, by local rank."""
        self.collect_exits()
        return {rank: pid for rank, pid in self._pids.items() if rank not in self._exited}

    def exit_fds(self) -> list[int]:
        """Return the exit descriptors of the processes that were alive at the last look."""
        return [fd for rank, fd in self._exit_fds.items() if rank not in self._exited]

    def collect_exits(self) -> dict[int, int]:
        """Return the exit codes of processes that ended since the last look; a signal is negative."""
        fresh = {}
        for rank, pid in self._pids.items():
            if rank in self._exited:
                continue
            try:
                result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                fresh[rank] = 0  # the PContext has collected it, and keeps the exit code
                continue
            if result is not None:
                killed = result.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
                code = -result.si_status if killed else result.si_status
                fresh[rank] = self._ends_as.get(rank, code)
        self._exited.update(fresh)
        return fresh

    def await_ends(self, ranks: Collection[int], patience_seconds: float) -> None:
        """Wait at most this long for the processes of these local ranks to end by themselves."""
        deadline = time.monotonic() + patience_seconds
        while (waiting := self.alive().keys() & set(ranks)) and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            for rank in waiting:
                poll.register(self._exit_fds[rank], select.POLLIN)
            poll.poll(left * 1000)

    def stop(
        self,
        death_signal: signal.Signals,
        grace_seconds: float,
        *,
        wake_fd: int | None = None,
        hurry_after_seconds: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Signal all processes, wait up to `grace_seconds`, and kill the rest with their descendants.

        A shell ends at once, so its scripts are waited for too. A process that still writes gets up to
        SAVING_GRACE_SECONDS.

        Args:
            wake_fd: descriptor that becomes readable when the grace may have changed.
            hurry_after_seconds: returns a shorter total grace, counted from the signal; None if unchanged.
        """
        if self._released:
            return
        started_at = time.monotonic()
        scripts = above_scripts(self.alive().values())
        self._written = {pid: _bytes_written(pid) for pid in scripts}
        self._below = [pid for pid in scripts if pid not in self._pids.values()]
        send(scripts, death_signal)
        deadline = started_at + grace_seconds
        while not self._wait(deadline, wake_fd):
            hurry = hurry_after_seconds()
            if hurry is not None:
                deadline, wake_fd = min(deadline, started_at + hurry), None
            if time.monotonic() >= deadline:
                if self._writes(until=started_at + SAVING_GRACE_SECONDS):
                    deadline = time.monotonic() + _LOOK_SECONDS
                    continue
                alive = list(self.alive().values()) or self._below
                logger.warning("processes %s outlived %s: killing them", alive, death_signal.name)
                break
        self.kill()

    def _writes(self, until: float) -> bool:
        """Return whether a process has written more than a log since the last look, before that time."""
        pids = [*self.alive().values(), *self._below]
        before, self._written = self._written, {pid: _bytes_written(pid) for pid in pids}
        if time.monotonic() >= until:
            return False
        return any(count - before.get(pid, 0) >= SAVING_BYTES for pid, count in self._written.items())

    def kill(self) -> None:
        """Kill all processes, and those that they have left behind. May be called again."""
        with deferred():  # interrupted, it would leave torch's log tails, for which the interpreter waits
            if self._released:
                return
            self._kill_groups()
            self._below = []
            killed = self._orphans.kill(self._pids.values())
            if not self._wait(time.monotonic() + ABANDON_SECONDS, None):
                logger.error("processes %s survive SIGKILL: giving them up", list(self.alive().values()))
            # Ends torch's log tails in the background, which takes up to 0.1 s.
            close = threading.Thread(target=self._close, args=(killed,), name="dlr-close", daemon=True)
            close.start()
            self._released, self._closing = True, close

    def release(self) -> None:
        """Leave the processes alone: the PContext has collected all, and their ids may be reused."""
        self._released = True
        self._close_fds()

    def let_go(self, local_rank: int) -> None:
        """Forget a process that lives on."""
        del self._pids[local_rank]
        os.close(self._exit_fds.pop(local_rank))

    def join(self, timeout_seconds: float) -> None:
        """Wait until the last log lines are written."""
        if self._closing is not None:
            self._closing.join(timeout_seconds)

    def _close(self, killed: Sequence[int]) -> None:
        try:
            self.pcontext.close(signal.SIGKILL, timeout=1)
        finally:
            self._close_fds()
            collect(killed)

    def _close_fds(self) -> None:
        fds, self._exit_fds = self._exit_fds, {}  # closed only once, since the numbers are reused
        for fd in fds.values():
            os.close(fd)

    def _wait(self, deadline: float, wake_fd: int | None) -> bool:
        """Return True when all have ended, False at the deadline or when woken."""
        while (alive := self.alive()) or self._below:
            # A process below a shell becomes our child once the shell has ended.
            exit_fds = self.exit_fds() if alive else [open_exit_fd(self._below[0])]
            poll = select.poll()
            for fd in (*exit_fds, *(() if wake_fd is None else (wake_fd,))):
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)]
            if not alive:
                os.close(exit_fds[0])
                if exit_fds[0] in ready:
                    del self._below[0]
            if wake_fd in ready:
                return not (self.alive() or self._below)
            if not ready and time.monotonic() >= deadline:
                return False
        return True

    def end(self, local_rank: int, exit_code: int) -> None:
        """Kill a process whose script has ended, and report it with the script's exit code."""
        self._ends_as[local_rank] = exit_code
        kill_group(self._pids[local_rank])

    def _kill_groups(self) -> None:
        """Send SIGKILL to whole process groups, as torch does."""
        for pid in self.alive().values():
            kill_group(pid)


def kill_group(pid: int) -> None:
    """Kill a child process, with its process group if it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


def _bytes_written(pid: int) -> int:
    """Return the number of bytes that a process has written (proc(5), /proc/PID/io); 0 if unknown."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), 0)


def abandon_start(pcontext: PContext | None, orphans: Orphans) -> None:
    """End the processes of a start that failed half way, since torch forgets them.

    Those that survive SIGKILL for ABANDON_SECONDS are waited for in the background.

    Args:
        pcontext: torch's context; None if the start failed before it.
    """
    killed = orphans.kill()

    def collect_all() -> None:
        if pcontext is not None:
            pcontext.close(signal.SIGKILL, timeout=1)
        collect(killed)

    thread = threading.Thread(target=collect_all, name="dlr-abandon", daemon=True)
    thread.start()
    thread.join(ABANDON_SECONDS)
    if thread.is_alive():
        logger.error("processes of a start that failed survive SIGKILL: giving them up")
