"""The warm parent as the agent has it: a process to order others from.

With the standard library only, so that it can be started before torch is imported here.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from agent.exit_fd import open_exit_fd
from agent.warm.order import MAX_BYTES, Answer, Order, connected
from agent.warm.room import ROOM, VARIABLE

READY_SECONDS = 300.0
"""For importing torch, which takes minutes where thousands of nodes read it from one file server."""
ANSWER_SECONDS = 10.0

OF_A_ROUND = (
    "CUDA_VISIBLE_DEVICES",
    "DLR_PROGRESS_FILE",
    "DLR_STACKS_",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "PYTHONFAULTHANDLER",
    "RANK",
    "ROLE_",
    "RUNTIME_METRICS_PATH",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "WORLD_SIZE",
)
"""Variables, or how they begin, that nothing reads before a script runs: each forked process has its own."""


class WarmParent:
    """One process that has imported torch, and forks.

    Raises:
        OSError: it is gone, does not answer, or must not fork.
    """

    def __init__(
        self, process: Process, control: socket.socket, env: Mapping[str, str], modules: Sequence[str]
    ) -> None:
        self.env = of_all_rounds(env)
        self.modules = tuple(modules)
        self._process = process
        self._control = control
        self._ready = False

    @classmethod
    def started(cls, env: Mapping[str, str], modules: Sequence[str]) -> WarmParent:
        """As an interpreter of its own."""
        control, theirs = connected()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "agent.warm.parent", str(theirs.fileno()), *modules, ROOM],
                env={**of_all_rounds(env), VARIABLE: ROOM},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the agent, which tells the others
            )
        return cls(process, control, env, modules)

    def fileno(self) -> int:
        """To be polled for input before the first fork: it comes when the parent is warm, or has failed."""
        return self._control.fileno()

    def fork(
        self, argv: Sequence[str], env: Mapping[str, str], redirects: Mapping[int, int]
    ) -> ForkedProcess:
        if not self._ready:
            self._answer(READY_SECONDS)
            self._ready = True
        order = Order(argv, dict(env), tuple(redirects)).encode()
        theirs, leave = os.pipe()
        try:
            socket.send_fds(self._control, [order], [theirs, *redirects.values()])
            process = ForkedProcess(argv, self._answer(ANSWER_SECONDS).pid)
            os.write(leave, b"1")
        finally:
            os.close(theirs)
            os.close(leave)
        return process

    def _answer(self, timeout_seconds: float) -> Answer:
        self._control.settimeout(timeout_seconds)
        data = self._control.recv(MAX_BYTES)
        if not data:
            raise ConnectionResetError(f"it ended with exit code {self._process.wait(ANSWER_SECONDS)}")
        answer = Answer.decode(data)
        if answer.error:
            raise OSError(answer.error)
        return answer

    def close(self) -> None:
        """May be repeated."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class Process(Protocol):
    """As much of `subprocess.Popen` as is used of a warm parent."""

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ForkedProcess:
    """A child that was forked, here or for us: as much of `subprocess.Popen` as torch and we use."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """As Popen's: negative for a signal, and 0 if somebody else has collected it."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            exit_fd = open_exit_fd(self.pid)
            poll = select.poll()
            poll.register(exit_fd, select.POLLIN)
            poll.poll(None if timeout is None else max(timeout, 0.0) * 1000)
            os.close(exit_fd)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return code


def of_all_rounds(env: Mapping[str, str]) -> dict[str, str]:
    """What of an environment may have been read when torch was imported."""
    return {name: value for name, value in env.items() if not name.startswith(OF_A_ROUND)}
