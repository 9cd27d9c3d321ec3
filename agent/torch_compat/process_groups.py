"""Process groups that are made and ended by themselves, beside `torch.distributed`'s default group.

Read in the sources of torch 2.6 to 2.14. From 2.14 on torch has `_reconfigure`, which is experimental and
keeps one group object; a new object for each membership works with all of these versions, and takes no
longer. torch is imported in the functions.
"""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    Backend = Any


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

    Its watchdog ends no process when a peer dies, as long as the group is aborted within its time limit.
    """
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    return ProcessGroupNCCL(store, rank, size, options)


def abort(group: Backend) -> None:
    """End a group whose peers may be dead. It may take seconds, so a thread of its own calls it.

    gloo's does not wake what waits for a peer that lives: that ends with the group's time-out, or as soon as
    the peer closes its side. NCCL's is never destroyed: where its watchdog has seen the failure, the
    destructor does not return (seen with torch 2.11 and NCCL 2.28).
    """
    if type(group).__name__ == "ProcessGroupNCCL":
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    group.abort()
