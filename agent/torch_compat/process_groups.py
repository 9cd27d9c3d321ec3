"""Process groups that are made and ended by themselves, beside `torch.distributed`'s default group.

Read in the sources of torch 2.6 to 2.14. From 2.14 on torch has `_reconfigure`, which is experimental and
keeps one group object; a new object for each membership works with all of these versions, and takes no
longer. torch is imported in the functions.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    Backend = Any

_CALM_WATCHDOG = {
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""Settings of ProcessGroupNCCL, which its constructor reads. By default a watchdog that sees a dead peer
before `abort` has all NCCL groups of the process write their records, and ends the process a minute later."""
_environ_lock = threading.Lock()


def gloo(store: Store, rank: int, size: int, timeout_seconds: float) -> Backend:
    """Make a gloo group of the ranks that share a store; it returns when all are connected.

    The interface is that of `GLOO_SOCKET_IFNAME`, or the one of this host's name, as with
    `init_process_group`.

    Args:
        store: with keys of this group alone.

    Raises:
        RuntimeError: a rank did not come in time, or the store failed.
    """
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_seconds))


def nccl(store: Store, rank: int, size: int, timeout_seconds: float) -> Backend:
    """Make an NCCL group of the ranks that share a store; they connect at the first collective.

    Its watchdog ends no process when a peer dies, and leaves the process's other NCCL groups alone. They
    connect without blocking in NCCL, so that `abort` reaches them when a peer dies meanwhile.
    """
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options.config.blocking = False
    with _environ(_CALM_WATCHDOG):
        return ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Have environment variables for a while; one thread at a time."""
    with _environ_lock:
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def abort(group: Backend) -> None:
    """End a group whose peers may be dead. It may take seconds, so a thread of its own calls it.

    gloo's does not wake what waits for a peer that lives: that ends with the group's time-out, or as soon as
    the peer closes its side. NCCL's is never destroyed: where its watchdog has seen the failure, the
    destructor does not return (seen with torch 2.11 and NCCL 2.28).
    """
    if type(group).__name__ == "ProcessGroupNCCL":
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    group.abort()
