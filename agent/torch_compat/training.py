"""What a training process uses of torch beside the script's own calls.

torch is imported in the functions: the parent of the training processes reads this before it has torch. Where
a torch lacks something, the caller gets the ImportError or AttributeError, and does without.
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
    """Have torch.compile call the hook as it is, where the step itself is compiled, and not compile it, too.

    `torch.compiler.disable` does that for all that is called below it, which takes 0.5 µs a call. `skip` is
    in 2.6 to 2.15.
    """
    from torch._dynamo.decorators import skip

    return skip(hook)


def note_first_group(now: Callable[[], float], note: Callable[[float, float], None]) -> None:
    """Have `note` called when this process has its process group, with when it began to form it, and now.

    torch has no hook for that, so `init_process_group` is another function until it has returned once. What
    imported it from torch before is not seen.
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
    """Have torch's own server answer the agent for the flight recorder, from C++ threads, in this process.

    Nothing happens outside of dlr, where torch is not loaded, or where the server cannot start, as a second
    one cannot. It takes half a millisecond. `_WorkerServer` and its handlers are in 2.6 to 2.15. It is never
    destroyed: that would wait for its threads, which a process that this one has forked does not have.
    """
    path = environ.get(ENV_RECORDER_SOCKET)
    if not path or Path(path).exists() or "torch" not in sys.modules:
        return
    with contextlib.suppress(Exception), _without_stderr():  # never a reason to stop training
        from torch._C._distributed_c10d import _WorkerServer

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_WorkerServer(path)))


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what C++ code writes to the standard error stream meanwhile."""
    kept = os.dup(2)
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
