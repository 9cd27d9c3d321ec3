"""Parts of torch that dlr uses in a training process, beside the script's own calls.

torch is imported in the functions, since the parent of the training processes imports this module first. If a
torch lacks a part, the caller gets the ImportError or AttributeError, and does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from crds.progress_record import ENV_RECORDER_SOCKET

Hook = Callable[[Any, Any, Any], None]
"""torch's hook for the steps of optimizers: the optimizer, its arguments and its keywords."""


_OWNERS_OF_INIT = (
    "torch.distributed.distributed_c10d",
    "torch.distributed",
    "torch.distributed.device_mesh",
)
"""Modules through which scripts and torch itself call `init_process_group`, in 2.6 to 2.15."""


def uncompiled(hook: Hook) -> Hook:
    """Keep torch.compile from compiling a hook together with a compiled step.

    `torch.compiler.disable` would also affect all calls below, at 0.5 µs a call. `skip` is in 2.6 to 2.15.
    """
    from torch._dynamo.decorators import skip

    return skip(hook)


def note_first_group(now: Callable[[], float], note: Callable[[float, float], None]) -> None:
    """Call `note` once this process has formed its process group, with the times of begin and end.

    torch has no hook for it, so `init_process_group` is replaced until it has returned once. References that
    were imported before are not replaced.
    """
    owners: list[Any] = [sys.modules[name] for name in _OWNERS_OF_INIT if name in sys.modules]
    if not owners:
        return
    original: Callable[..., None] = owners[0].init_process_group
    is_noted = False

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **keywords: Any) -> None:
        nonlocal is_noted
        began = now()
        original(*arguments, **keywords)
        if is_noted:  # a script may keep this function
            return
        is_noted = True
        for owner in owners:
            if owner.init_process_group is init_process_group:
                owner.init_process_group = original
        note(began, now())

    for owner in owners:
        if owner.init_process_group is original:
            owner.init_process_group = init_process_group


def serve_records(environ: Mapping[str, str]) -> None:
    """Start torch's own server in this process, whose C++ threads serve the flight recorder to the agent.

    It does nothing outside of dlr, without torch, or if the server cannot start, for example a second one. It
    takes half a millisecond. `_WorkerServer` and its handlers are in 2.6 to 2.15. The server is never
    destroyed: that would wait for its threads, which a process forked from this one does not have.
    """
    path = environ.get(ENV_RECORDER_SOCKET)
    if not path or Path(path).exists() or "torch" not in sys.modules:
        return
    with contextlib.suppress(Exception), _without_stderr():  # training goes on without
        from torch._C._distributed_c10d import _WorkerServer

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_WorkerServer(path)))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop the output of C++ code to stderr while the context is open."""
    kept = os.dup(2)
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
