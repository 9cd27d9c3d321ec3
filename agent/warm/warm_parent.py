"""The agent's side of the warm parent, a process that forks others on request.

It imports only the standard library, so that the parent can be started before torch is imported here.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent.processes.orphans import become_subreaper, open_exit_fd
from agent.warm import Preloads
from agent.warm.messages import MAX_BYTES, REQUEST, ForkRequest, ParentReply, socket_pair
from agent.warm.script import runs_python

READY_SECONDS = 300.0
"""Time limit of a round for the import of torch: minutes, if thousands of nodes read one file server."""
ANSWER_SECONDS = 60.0
"""Time limit for a ready parent to fork. It takes that long only on a crowded node, where a new parent would
take longer."""

KILLED_SECONDS = 5.0
"""Time limit for a killed parent to end; one that imports from a hanging mount may not."""

MODULE = "agent.warm.parent"
ROOT = str(Path(__file__).parents[__name__.count(".")])
"""The folder, or the zip, of our top-level package."""
BOOT = (
    "import sys; path, sys.path = sys.path, [*filter(None, sys.path), sys.argv.pop(1)]; "
    f"from {MODULE} import main; main(sys.argv, path)"
)
"""Program of a parent that is a new interpreter. With `-m`, a folder `dlr` or `agent` in the working
directory would be taken for ours. Modules of `--preload` are still found there."""

ROUND_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "DLR_CHECKPOINT_FILE",
    "DLR_JOINS",
    "DLR_PROGRESS_FILE",
    "DLR_RECORDER_SOCKET",
    "DLR_REPLICAS_SOCKET",
    "DLR_ROUND",
    "DLR_SHARDS_SOCKET",
    "DLR_SPARE",
    "DLR_STACKS_",
    "DLR_WORLD_SOCKET",
    "GLOO_SOCKET_IFNAME",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
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
    "TRACEPARENT",
    "WORLD_SIZE",
)
"""Variables, or their prefixes, that no import reads, so that each forked process can have its own."""
logger = logging.getLogger(__name__)
MAX_FAILURES = 3
"""Number of failed parents after which all processes are spawned."""
WARM_SECONDS = 60.0
"""Time limit for a parent to become ready in a worker that no other worker waits for."""


class WarmParent:
    """A process that imports torch, and then forks others."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedProcess,
        control: socket.socket,
        env: Mapping[str, str],
        preloads: Preloads,
    ) -> None:
        self.env = without_round_variables(env)
        self.preloads = preloads
        self._process = process
        self._control = control
        self._ready = False

    @classmethod
    def started(cls, env: Mapping[str, str], preloads: Preloads) -> WarmParent:
        """Start a parent as a new interpreter."""
        control, theirs = socket_pair()
        arguments = [ROOT, str(theirs.fileno()), ",".join(preloads.sdk), *preloads.users]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", BOOT, *arguments],
                env=without_round_variables(env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C reaches only the agent, which ends the others
            )
        return cls(process, control, env, preloads)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the parent is ready or has failed."""
        return self._control.fileno()

    @property
    def session(self) -> int:
        """Id of its session, which is its own."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Return whether it can fork, without waiting.

        Raises:
            OSError: it must not fork, with the reason, or it has ended.
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
        """Fork a process; call it only when `is_ready`.

        Args:
            argv: the command of the process, from the interpreter on.
            redirects: our descriptors for its stdout (1) and stderr (2).

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
            try:
                code = self._process.wait(ANSWER_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise ConnectionResetError("it has closed its connection, and does not end") from error
            raise ConnectionResetError(f"it ended with exit code {code}")
        answer = ParentReply.decode(data)
        if answer.error:
            raise OSError(answer.error)
        return answer

    def close(self) -> None:
        self._process.kill()
        try:
            self._process.wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the warm parent %d survives SIGKILL: giving it up", self._process.pid)
        self._control.close()


class ForkedProcess:
    """A forked child, with as much of `subprocess.Popen` as torch and we use."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self.ends_as: int | None = None
        """Exit code to report if the process is ended after its script."""

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code if it has ended: negative for a signal, 0 if it was collected elsewhere."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
                if pid and self.ends_as is not None:
                    self.returncode = self.ends_as
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


class WarmStart:
    """Forks processes that torch would spawn, if possible. Not thread-safe."""

    def __init__(self, preloads: Preloads, parent: WarmParent | None = None) -> None:
        """Become a subreaper, so that processes forked by the parent are this process's children.

        Args:
            preloads: modules that the parent imports beside torch's.
            parent: a parent that is already started.

        Raises:
            OSError: this process cannot become a subreaper.
        """
        self._preloads = preloads
        self._parent = parent
        self._failures = 0
        become_subreaper()

    def sessions(self) -> tuple[int, ...]:
        """Return the ids of sessions that belong to no round: the parent's."""
        return () if self._parent is None else (self._parent.session,)

    def prepare(self, env: Mapping[str, str]) -> None:
        """Start a parent for processes with this environment, unless there is one or too many have failed."""
        parent, wanted = self._parent, (without_round_variables(env), self._preloads)
        if parent is not None and (parent.env, parent.preloads) != wanted:
            logger.info("renewing the warm parent: it was started for another environment")
            self.close()
        if self._parent is None and self._failures < MAX_FAILURES:
            self._parent = WarmParent.started(env, self._preloads)

    def await_warm(
        self, news: int, worth_it: Callable[[], bool], limit_seconds: float = WARM_SECONDS
    ) -> None:
        """Wait until the parent can fork or has failed, or until waiting is not worth it any more.

        Args:
            news: descriptor that becomes readable when `worth_it` may have changed.
            worth_it: returns whether to wait; called at first, and at news.
            limit_seconds: time limit.
        """
        if self._parent is None or self._is_decided(self._parent):
            return
        parent, poll = self._parent.fileno(), select.poll()
        for descriptor in (news, parent):
            poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + limit_seconds
        while worth_it() and (left_seconds := deadline - time.monotonic()) > 0:
            if parent in dict(poll.poll(left_seconds * 1000)):
                return

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], redirects: Mapping[int, int]
    ) -> ForkedProcess | None:
        """Fork a process; return None if it has to be spawned.

        Args:
            argv: the command, from the interpreter on.
            redirects: our descriptors for its stdout (1) and stderr (2).
        """
        if not runs_python(argv):
            return None
        self.prepare(env)
        if self._parent is None:
            return None
        try:
            if not self._parent.is_ready():
                logger.info("the warm parent is not ready yet, so the process is spawned")
                return None
            return self._parent.fork(argv, env, redirects)
        except OSError as error:
            self._failures += 1
            logger.warning("the warm parent cannot fork, so the process is spawned: %s", error)
            self.close()
            self.prepare(env)  # for the next round
            return None

    def is_warm(self) -> bool:
        """Return whether the parent is ready, or has failed."""
        return self._parent is not None and self._is_decided(self._parent)

    @staticmethod
    def _is_decided(parent: WarmParent) -> bool:
        try:
            return parent.is_ready()
        except OSError:
            return True  # `start` asks again, and logs the reason

    def close(self) -> None:
        if self._parent is not None:
            self._parent.close()
            self._parent = None
