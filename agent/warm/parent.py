"""The process that training processes are forked from: it has imported what they would import first.

It has one thread and never touches a device, since neither survives a fork; it says so instead of forking
where a module that it imported broke that. Each training process is forked twice, and so becomes the agent's
own child: the agent is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER). It ends when the agent does.

The first one of an agent is a fork of that agent itself (`agent.launch`), which has imported torch by then.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.warm.order import MAX_BYTES, Answer, Order
from agent.warm.script import become, show_command

USUAL = (
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
"""What training scripts import, themselves or with their first model. Not all of it is in every torch."""


def main(argv: list[str]) -> None:
    """`python -u -m agent.warm.parent FD [MODULE…] ROOM`. In a training process it returns with its script.

    ROOM is as long as the training processes' own commands may be, for `ps` to show them.
    """
    gc.disable()  # imports make hundreds of thousands of objects, and hardly any garbage
    be_parent(socket.socket(fileno=int(argv[1])), argv[2:-1])


def be_parent(control: socket.socket, modules: Sequence[str]) -> None:
    """Until the agent is gone. In each training process it returns, or raises, with its script."""
    show_command(["dlr-warm-parent"])
    problem = preload(modules) or unsafe()
    control.send(Answer(error=problem).encode())
    if problem:
        return
    gc.freeze()  # what is never looked at by the collector is never copied for a child
    gc.enable()
    order = serve(control)
    if order is not None:
        become(order.argv)


def preload(modules: Sequence[str]) -> str:
    """Import them all; which one of the user's cannot be, and why."""
    for name in USUAL:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # another torch
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"--preload {name}: {type(error).__name__}: {error}"
    return ""


def unsafe() -> str:
    """Why this process must not be forked; "" if it may.

    A fork finds it out: libraries such as OpenBLAS end their threads for it, and start them when needed.
    """
    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"a module that was imported runs {threads - 1} threads of its own, which no fork takes along"
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except OSError:
            continue
        if str(target).startswith(("/dev/nvidia", "/dev/kfd")):
            return f"a module that was imported opened {target}, and no device survives a fork"
    return ""


def serve(control: socket.socket) -> Order | None:
    """Fork what is ordered: None in the parent, at the end; the order in a new training process."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_BYTES, 3)
        if not data:
            return None  # the agent is gone
        order = Order.decode(data)
        pid = _fork_for_the_agent()
        if pid == 0:
            control.close()
            _await_leave(descriptors[0])
            _furnish(order, descriptors[1:])
            return order
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(Answer(pid=pid).encode())


def _fork_for_the_agent() -> int:
    """The new process's id, once it is the agent's child; 0 in the new process."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(reader)
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            return 0
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    pid = int(os.read(reader, 32))
    os.close(reader)
    os.waitpid(between, 0)  # only now has the agent become the parent
    return pid


def _await_leave(descriptor: int) -> None:
    """Until the agent knows of this process: one that it knows nothing of must not train."""
    if not os.read(descriptor, 1):
        os._exit(1)
    os.close(descriptor)


def _furnish(order: Order, descriptors: list[int]) -> None:
    """Session, output and environment, as `subprocess` sets them up for torch's processes."""
    os.setsid()
    for number, descriptor in zip(order.redirected, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    set_environment(order.env)


def set_environment(env: Mapping[str, str]) -> None:
    """All of it: what is not in there is gone."""
    os.environ.clear()
    os.environ.update(env)


if __name__ == "__main__":
    main(sys.argv)
