"""The process that training processes are forked from: it has imported what they would import first.

It has one thread and never touches a device, since neither survives a fork; it says so instead of forking
where a module that it imported broke that. `import torch` loads the back ends of other makers by itself (the
entry points `torch.backends`). Each training process is forked twice, and so becomes the agent's
own child: the agent is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). It ends when the agent does.

Two forks of a process of this size take 20 ms, so while nothing is asked for it forks the processes of the
next round ahead: they wait for what they are to run, and end when this process does.

The first one of an agent is a fork of that agent itself (`agent.launch`), which has imported torch by then.
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
"""torch's variable: how many processes an agent has in a round."""
QUIET_SECONDS = 0.5
"""After so long without a request, the next processes are forked ahead: what was started runs by then."""

USUAL_MODULES = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    # DistributedDataParallel and the optimizers import it when they are first used: half of all import time.
    "torch._dynamo",
)
"""Modules that training scripts import, themselves or with their first model. Not every torch has all."""


def main(argv: list[str], path: list[str]) -> None:
    """Run as `agent.warm.warm_parent.BOOT`. In training processes it returns too.

    Args:
        argv: `FD SDK [MODULE…]`. SDK has modules with commas between them.
        path: `sys.path` from the user's modules on.
    """
    gc.disable()  # imports make hundreds of thousands of objects, and hardly any garbage
    preloads = Preloads(tuple(filter(None, argv[2].split(","))), tuple(argv[3:]))
    run_parent(socket.socket(fileno=int(argv[1])), preloads, path)


def run_parent(control: socket.socket, preloads: Preloads, path: list[str]) -> None:
    """Import, and fork on request until the agent is gone.

    In each training process it returns when the script does, or raises what `run_script` raises.
    """
    show_command(["dlr-warm-parent"])
    problem = preload(preloads, path) or reason_not_to_fork()
    if not _reply(control, ParentReply(error=problem)) or problem:
        return
    gc.freeze()  # what is never looked at by the collector is never copied for a child
    gc.enable()
    request = serve(control)
    if request is not None:
        run_script(request.argv)


def preload(preloads: Preloads, path: list[str]) -> str:
    """Import all modules. Return which one of the user's cannot be imported, and why; else ""."""
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
    """Return why this process must not be forked; "" if it may.

    It forks on trial, since libraries such as OpenBLAS end their threads for a fork, and start them again
    when they need them.
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
    """A process that was forked and waits for its request."""

    pid: int
    """0 in the process itself."""
    channel: socket.socket
    """Socket by which it gets the request."""


def serve(control: socket.socket) -> ForkRequest | None:
    """Fork processes on request, and as many ahead as the agent has in a round.

    Returns:
        In a new training process, what was asked for. In the parent None, when the agent is gone.
    """
    ahead: list[Child] = []
    wanted = 0
    while True:
        if len(ahead) < wanted and _is_silent(control, QUIET_SECONDS):
            try:
                child = _fork_child()
            except OSError:  # too many processes, or too little memory
                wanted = len(ahead)  # until somebody asks, who finds out if it is still so
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
    """Whether the other side sends nothing for so long, and does not end."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return not poll.poll(1_000 * seconds)


def _fork_child() -> Child:
    ours, theirs = socket_pair()
    pid = _fork_for_the_agent()
    (theirs if pid else ours).close()
    return Child(pid, ours if pid else theirs)


def _become(others: Sequence[socket.socket], child: Child) -> ForkRequest:
    """Wait for the request, in a new process, and return it when the agent permits to run it.

    Args:
        others: the parent's sockets, which are not ours.
    """
    for other in others:
        other.close()
    with child.channel:
        data, descriptors, _, _ = socket.recv_fds(child.channel, len(REQUEST), MAX_DESCRIPTORS)
    if not data:
        os._exit(0)  # the parent is gone, and nobody knows of this process
    request = ForkRequest.of_file(descriptors[0])
    os.close(descriptors[0])
    _await_permission(descriptors[1])
    _set_up(request, descriptors[2:])
    return request


def _reply(control: socket.socket, reply: ParentReply) -> bool:
    """Send a reply; False if the agent is gone."""
    try:
        control.send(reply.encode())
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _fork_for_the_agent() -> int:
    """Fork twice. Return the new process's id once it is the agent's child; in the new process, 0.

    Raises:
        OSError: the kernel forks no more.
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
    _, status = os.waitpid(between, 0)  # Only now has the agent become the parent.
    if not pid_text:
        code = os.waitstatus_to_exitcode(status)
        raise OSError(code, f"no process can be forked: {os.strerror(code)}")
    return int(pid_text)


def _await_permission(descriptor: int) -> None:
    """Wait until the agent knows of this process: one that it does not know of must not train."""
    if not os.read(descriptor, 1):
        os._exit(1)
    os.close(descriptor)


def _set_up(request: ForkRequest, descriptors: list[int]) -> None:
    """Set up session, output and environment as `subprocess` does for torch's processes.

    The kernel is told to kill the process if the agent is killed (prctl(2)).
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    for number, descriptor in zip(request.redirected, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    set_environment(request.env)


def set_environment(env: Mapping[str, str]) -> None:
    """Replace the whole environment: what is not in `env` is gone."""
    os.environ.clear()
    os.environ.update(env)
