"""The warm parent as the agent sees it: a process that forks others on request.

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
from pathlib import Path
from typing import Protocol

from agent.processes.exit_fd import open_exit_fd
from agent.warm import PADDING, PADDING_VARIABLE, Preloads
from agent.warm.messages import MAX_BYTES, REQUEST, ForkRequest, ParentReply, socket_pair

READY_SECONDS = 300.0
"""How long a round waits for torch to be imported: minutes, where thousands of nodes read one file server."""
ANSWER_SECONDS = 10.0
"""How long a parent that is ready may take to fork."""

MODULE = "agent.warm.parent"
ROOT = str(Path(__file__).parents[__name__.count(".")])
"""The folder, or the zip, that our top-level package is in."""
BOOT = (
    "import sys; path, sys.path = sys.path, [*filter(None, sys.path), sys.argv.pop(1)]; "
    f"from {MODULE} import main; main(sys.argv, path)"
)
"""The program of a parent that is started as an interpreter of its own. With `-m`, a folder `dlr` or `agent`
in the working directory would be taken for ours. Modules of `--preload` are found there all the same."""

ROUND_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "DLR_CHECKPOINT_FILE",
    "DLR_PROGRESS_FILE",
    "DLR_ROUND",
    "DLR_SHARDS_SOCKET",
    "DLR_STACKS_",
    "GLOO_SOCKET_IFNAME",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "KUBEFLOW_TRAINER_SERVER_",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "NCCL_SOCKET_IFNAME",
    "PYTHONFAULTHANDLER",
    "RANK",
    "ROLE_",
    "RUNTIME_METRICS_PATH",
    "TORCHELASTIC_",
    "TORCH_FR_",
    "TORCH_INCLUDE_STACK_TRACE",
    "TORCH_NCCL_",
    "WORLD_SIZE",
    "no_proxy",
)
"""Variables, or how they begin, that nothing reads before a script runs: each forked process has its own."""


class WarmParent:
    """One process that imports torch, and then forks others."""

    def __init__(
        self, process: Process, control: socket.socket, env: Mapping[str, str], preloads: Preloads
    ) -> None:
        self.env = without_round_variables(env)
        self.preloads = preloads
        self._process = process
        self._control = control
        self._ready = False

    @classmethod
    def started(cls, env: Mapping[str, str], preloads: Preloads) -> WarmParent:
        """Start one as an interpreter of its own."""
        control, theirs = socket_pair()
        arguments = [ROOT, str(theirs.fileno()), ",".join(preloads.sdk), *preloads.users, PADDING]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", BOOT, *arguments],
                env={**without_round_variables(env), PADDING_VARIABLE: PADDING},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the agent, which tells the others
            )
        return cls(process, control, env, preloads)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the parent is ready, or has failed."""
        return self._control.fileno()

    @property
    def session(self) -> int:
        """The id of its session, which it has begun itself."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Tell whether it can fork by now, without waiting.

        Raises:
            OSError: it says why it must not, or it has ended.
        """
        if not self._ready:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if poll.poll(0):
                self._answer(ANSWER_SECONDS)
                self._ready = True
        return self._ready

    def fork(
        self, argv: Sequence[str], env: Mapping[str, str], redirects: Mapping[int, int]
    ) -> ForkedProcess:
        """Have a process forked; call it only when `is_ready`.

        Args:
            argv: the command that the process runs, from the interpreter on.
            env: its whole environment.
            redirects: which descriptor of ours it gets as its 1 and 2.

        Raises:
            OSError: the parent has ended, or does not answer within ANSWER_SECONDS.
        """
        request = ForkRequest(argv, dict(env), tuple(redirects)).to_file()
        theirs, permission = os.pipe()
        try:
            socket.send_fds(self._control, [REQUEST], [request, theirs, *redirects.values()])
            process = ForkedProcess(argv, self._answer(ANSWER_SECONDS).pid)
            os.write(permission, b"1")
        finally:
            for descriptor in (request, theirs, permission):
                os.close(descriptor)
        return process

    def _answer(self, timeout_seconds: float) -> ParentReply:
        self._control.settimeout(timeout_seconds)
        data = self._control.recv(MAX_BYTES)
        if not data:
            raise ConnectionResetError(f"it ended with exit code {self._process.wait(ANSWER_SECONDS)}")
        answer = ParentReply.decode(data)
        if answer.error:
            raise OSError(answer.error)
        return answer

    def close(self) -> None:
        """End it. May be repeated."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class Process(Protocol):
    """The part of `subprocess.Popen` that is used of a warm parent."""

    pid: int

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ForkedProcess:
    """A forked child, with as much of `subprocess.Popen` as torch and we use."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, if it has ended: negative for a signal, 0 if another has collected it."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.
        """
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


def without_round_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that importing torch may have read."""
    return {name: value for name, value in env.items() if not name.startswith(ROUND_VARIABLES)}
