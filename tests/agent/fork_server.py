"""`python -u -m tests.agent.fork_server FD`: agents are forks of one process that has imported torch.

An interpreter of its own costs an agent two seconds of a core, nearly all of them for the same imports. Nothing
of dlr is imported here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.warm.parent import USUAL_MODULES
from agent.warm.script import show_command
from tests.agent.patience import Patience

ROOT = Path(__file__).parents[2]
MODULES = (*USUAL_MODULES, "torch.distributed.run", "urllib3", "tenacity")
MAX_BYTES = 1 << 17
MAX_DESCRIPTORS = 4


class ForkServer:
    """The server, started at once, and asked for agents."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.agent.fork_server", str(theirs.fileno())],
                env={
                    **{name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ},
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "ROOM": "." * 2048,  # processes show their environment in the place of a Pod's
                },
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(
        self,
        module: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        output: int,
        constants: Mapping[str, Any],
    ) -> Fork:
        """Run a module as `python -m` does, its output to a descriptor, in a session of its own.

        Args:
            constants: what those of other modules are instead, by their dotted names.
        """
        request = {
            **{"module": module, "argv": list(argv), "env": dict(env), "directory": str(directory)},
            "constants": dict(constants),
        }
        return Fork(ask(self.control, request, {1: output, 2: output}))

    def close(self) -> None:
        self.control.close()
        self._process.wait()


def ask(control: socket.socket, request: Mapping[str, Any], files: Mapping[int, int]) -> int:
    """Ask the server for a process; return the pipe that tells its pid and its end.

    Args:
        request: what `ForkServer.start` is given.
        files: the process's open files, by their numbers there.
    """
    exits, told = os.pipe()
    message = json.dumps({**request, "files": [*files]}).encode()
    socket.send_fds(control, [message], [told, *files.values()])
    os.close(told)
    return exits


class Fork:
    """A process of the server's, with `subprocess.Popen`'s methods."""

    def __init__(self, exits: int) -> None:
        self._exits = exits
        (self.pid,) = struct.unpack("i", os.read(exits, 4))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0):
            (status,) = struct.unpack("i", os.read(self._exits, 4))
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def __del__(self) -> None:
        os.close(self._exits)  # not before: another thread may wait for it

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"agent {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def _has_ended(self, timeout: float | None) -> bool:
        """Whether it has, within so many seconds. A test may have more files open than select(2) takes."""
        poll = select.poll()
        poll.register(self._exits, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the server has reaped it, as yet unheard
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork on request.

    Returns:
        In a new process what was asked for, and its files. In the server None, when the test process is gone.
    """
    ends: dict[int, tuple[int, int]] = {}  # by pidfd: the pid, and who is told
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in ends:
                pid, told = ends.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                with contextlib.suppress(BrokenPipeError):  # who asked for it is gone
                    os.write(told, struct.pack("i", os.waitpid(pid, 0)[1]))
                os.close(told)
                continue
            data, descriptors, _, _ = socket.recv_fds(control, MAX_BYTES, MAX_DESCRIPTORS)
            if not data:
                return None
            told, *files = descriptors
            pid = os.fork()
            if pid == 0:
                for descriptor in (control.detach(), told, *ends, *(other for _, other in ends.values())):
                    os.close(descriptor)
                return json.loads(data), files
            for descriptor in files:
                os.close(descriptor)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, struct.pack("i", pid))
            pidfd = os.pidfd_open(pid)
            ends[pidfd] = (pid, told)
            poll.register(pidfd, select.POLLIN)


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Be what was asked for, until its end."""
    os.setsid()
    for number, file in zip(request["files"], files, strict=True):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(request["directory"])
    module, argv, env = request["module"], request["argv"], request["env"]
    os.environ.clear()
    os.environ.update(env)
    sys.path[:2] = [request["directory"], *env["PYTHONPATH"].split(os.pathsep)]  # were: our directory, ROOT
    sys.modules.pop("pynvml", None)  # torch's; the agent may find another one in its directory
    sys.argv[1:] = argv
    sys.orig_argv = [sys.executable, "-u", "-m", module, *argv]
    show_command(sys.orig_argv)
    constants = request["constants"].items()  # JSON has no tuples
    Patience({name: tuple(it) if isinstance(it, list) else it for name, it in constants}).install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    gc.disable()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        become(*asked)


if __name__ == "__main__":
    main()
