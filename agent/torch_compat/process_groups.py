"""Process groups that are created and ended independently of `torch.distributed`'s default group.

Checked in the sources of torch 2.6 to 2.14. From 2.14 on torch has `_reconfigure`, which is experimental and
keeps one group object; a new object for each membership works with all of these versions, and takes no
longer. torch is imported in the functions. Each group ends by its `abort`, which may take seconds. gloo's
does not wake a collective that waits for a living peer: it ends with the group's time-out, or when the peer
closes its side.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.torch_compat import UnsupportedTorchError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

    Backend = Any

_WITHOUT_WATCHDOG = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_CUDA_EVENT_CACHE": "1",
}
"""Settings that ProcessGroupNCCL's constructor reads. A watchdog that notices a dead peer ends the process
after a minute, and sets `shouldDump_`, for which the default group's monitor ends it after 8, even if the
group is aborted meanwhile. A group with blocking waits has no watchdog, and no thread that calls its store.
Therefore completed collectives are not marked in the flight recorder; the event cache keeps the events that
it reads. A group that the script creates in another thread at this moment gets these settings too."""
_environ_lock = threading.Lock()


def gloo(store: Store, rank: int, size: int, timeout_seconds: float) -> Backend:
    """Create a gloo group of the ranks that share a store; it returns when all are connected.

    The network interface is that of `GLOO_SOCKET_IFNAME`, or of this host's name, as with
    `init_process_group`.

    Args:
        store: a store with only this group's keys.

    Raises:
        RuntimeError: a rank did not come in time, or the store failed.
    """
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_seconds))


def nccl(store: Store, rank: int, size: int, timeout_seconds: float, device: torch.device) -> Backend:
    """Create an NCCL group of the ranks that share a store, and begin to connect them.

    Its `wait` blocks the host, unlike that of other groups: use `follow`. NCCL connects without blocking, so
    that `abort` works if a peer dies meanwhile. A collective that is enqueued before all are connected waits
    for that, holding the lock that `abort` needs, for 30 minutes at most (TORCH_NCCL_NONBLOCKING_TIMEOUT).
    """
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    options.config.blocking = False
    with _environ(_WITHOUT_WATCHDOG):
        group = ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


def require_captures_without_watchdog() -> None:
    """Refuse a torch whose CUDA graphs wait until a watchdog has processed all earlier collectives.

    With groups without a watchdog they would wait for ever. torch does not wait any more since
    https://github.com/pytorch/pytorch/pull/148594, which is recognised by its header.

    Raises:
        UnsupportedTorchError: this torch waits.
    """
    import torch

    header = Path(torch.__file__).parent / "include/ATen/cuda/CUDAGraph.h"
    if "pending_event_queries" in header.read_text():
        raise UnsupportedTorchError(
            f"dlr.replicas: with torch {torch.__version__}, CUDA graphs would hang beside groups on GPUs: "
            "install torch 2.8 or newer"
        )


def follow(work: Any) -> None:
    """Make the current stream wait for a collective of an NCCL group, without blocking the host."""
    work.get_future().wait()


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context is open; one thread at a time."""
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
