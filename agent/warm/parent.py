"""The process that training processes are forked from, after it has imported torch and other modules.

It has one thread and never uses a device, since neither survives a fork; if an imported module breaks that,
it reports this instead of forking. `import torch` loads the back ends of other makers by itself (the entry
points `torch.backends`). Each training process is forked twice, and so becomes the agent's own child: the
agent is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). The parent ends when the agent does.

Two forks of a process of this size take 20 ms. So while the agent is idle, the parent forks the processes of
the next round ahead; they wait for their requests, and end when the parent does.

An agent's first parent is a fork of that agent itself (`agent.launch`), which has imported torch by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.processes.devices import open_device
from agent.warm import Preloads
from agent.warm.messages import MAX_DESCRIPTORS, REQUEST, ForkRequest, ParentReply, socket_pair
from agent.warm.script import run_script, show_command

PR_SET_PDEATHSIG = 1
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
"""torch's variable for the number of an agent's processes in a round."""
QUIET_SECONDS = 0.5
"""Time without a request until the next processes are forked ahead; the last ones run by then."""

USUAL_MODULES = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    # DistributedDataParallel and the optimizers import it at their first use: half of all import time.
    "torch._dynamo",
)
"""Modules that training scripts import, directly or with their first model. Not every torch has all."""


def main(argv: list[str], path: list[str]) -> None:
    """Run the parent for `agent.warm.warm_parent.BOOT`. It also returns in training processes.

    Args:
        argv: `FD SDK [MODULE…]`, where SDK is a list of modules separated by commas.
        path: `sys.path` from the user's modules on.
    """
    gc.disable()  # imports make hundreds of thousands of objects, and hardly any garbage
    preloads = Preloads(tuple(filter(None, argv[2].split(","))), tuple(argv[3:]))
    run_parent(socket.socket(fileno=int(argv[1])), preloads, path)


def run_parent(control: socket.socket, preloads: Preloads, path: list[str]) -> None:
    """Import the modules, and fork on request until the agent is gone.

    In a training process it returns when the script ends, or raises the exceptions of `run_script`.
    """
    show_command(["dlr-warm-parent"])
    problem = preload(preloads, path) or reason_not_to_fork()
    if not _reply(control, ParentReply(error=problem)) or problem:
        return
    gc.freeze()  # pages that the collector does not touch are never copied for a child
    gc.enable()
    request = serve(control)
    if request is not None:
        run_script(request.argv)


def preload(preloads: Preloads, path: list[str]) -> str:
    """Import all modules. Return an error if one of the user's cannot be imported; else ""."""
    for name in (*USUAL_MODULES, *preloads.sdk):
        with contextlib.suppress(ImportError):  # another torch
            importlib.import_module(name)
    sys.path = path
    for name in preloads.users:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"--preload {name}: {type(error).__name__}: {error}"
    return ""


def reason_not_to_fork() -> str:
    """Return the reason why this process must not be forked; "" if it may.

    The threads are counted after a trial fork, since libraries such as OpenBLAS end theirs for a fork.
    """
    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"a module that was imported runs {threads - 1} threads of its own, which no fork takes along"
    if device := open_device():
        return f"a module that was imported opened {device}, and no device survives a fork"
    return ""


@dataclass(frozen=True)
class Child:
    """A forked process that waits for its request."""

    pid: int
    """0 in the process itself."""
    channel: socket.socket
    """Socket by which it gets the request."""


def serve(control: socket.socket) -> ForkRequest | None:
    """Fork processes on request, and ahead as many as the agent has in a round.

    Returns:
        In a new training process its request; in the parent None, when the agent is gone.
    """
    ahead: list[Child] = []
    wanted = 0
    while True:
        if len(ahead) < wanted and _is_silent(control, QUIET_SECONDS):
            try:
                child = _fork_child()
            except OSError:  # too many processes, or too little memory
                wanted = len(ahead)  # until the next request
                continue
            if child.pid == 0:
                return _become([control, *(other.channel for other in ahead)], child)
            ahead.append(child)
            continue
        data, descriptors, _, _ = socket.recv_fds(control, len(REQUEST), MAX_DESCRIPTORS)
        if not data:
            return None
        wanted = int(ForkRequest.of_file(descriptors[0]).env.get(LOCAL_WORLD_SIZE, "1"))
        ahead = [child for child in ahead if _is_silent(child.channel)]  # one may have been killed
        child = ahead.pop() if ahead else _fork_child()
        if child.pid == 0:
            for descriptor in descriptors:
                os.close(descriptor)
            return _become([control], child)
        with child.channel:
            socket.send_fds(child.channel, [data], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if not _reply(control, ParentReply(pid=child.pid)):
            return None


def _is_silent(channel: socket.socket, seconds: float = 0.0) -> bool:
    """Return whether the other side sends nothing for this time, and does not end."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return not poll.poll(1_000 * seconds)


def _fork_child() -> Child:
    ours, theirs = socket_pair()
    pid = _fork_for_the_agent()
    (theirs if pid else ours).close()
    return Child(pid, ours if pid else theirs)


def _become(others: Sequence[socket.socket], child: Child) -> ForkRequest:
    """Wait, in a new process, for the request and for the agent's permission to run, and return the request.

    Args:
        others: the parent's sockets, which are closed.
    """
    for other in others:
        other.close()
    with child.channel:
        data, descriptors, _, _ = socket.recv_fds(child.channel, len(REQUEST), MAX_DESCRIPTORS)
    if not data:
        os._exit(0)  # the parent is gone, and the agent has no record of this process
    request = ForkRequest.of_file(descriptors[0])
    os.close(descriptors[0])
    _await_permission(descriptors[1])
    _set_up(request, descriptors[2:])
    return request


def _reply(control: socket.socket, reply: ParentReply) -> bool:
    """Send a reply; return False if the agent is gone."""
    try:
        control.send(reply.encode())
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _fork_for_the_agent() -> int:
    """Fork twice. Return the new process's id once it is the agent's child; in the new process, return 0.

    Raises:
        OSError: the kernel refuses.
    """
    reader, writer = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if between == 0:
        os.close(reader)
        try:
            pid = os.fork()
        except OSError as error:
            os._exit(error.errno or 1)
        if pid == 0:
            os.close(writer)
            return 0
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    pid_text = os.read(reader, 32)
    os.close(reader)
    _, status = os.waitpid(between, 0)  # only now has the agent become the parent
    if not pid_text:
        code = os.waitstatus_to_exitcode(status)
        raise OSError(code, f"no process can be forked: {os.strerror(code)}")
    return int(pid_text)


def _await_permission(descriptor: int) -> None:
    """Wait until the agent has a record of this process; without one it must not train."""
    if not os.read(descriptor, 1):
        os._exit(1)
    os.close(descriptor)


def _set_up(request: ForkRequest, descriptors: list[int]) -> None:
    """Set up session, output and environment as `subprocess` does for torch's processes.

    The kernel will kill the process if the agent is killed (prctl(2)).
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    for number, descriptor in zip(request.redirected, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    set_environment(request.env)


def set_environment(env: Mapping[str, str]) -> None:
    """Replace the whole environment."""
    os.environ.clear()
    os.environ.update(env)
