"""torch's TCPStore, listening on only one address."""

from __future__ import annotations

import socket
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

BACKLOG = 4_096
"""Clients that may wait in the kernel, which has its own limit (net.core.somaxconn)."""
TAKES_DESCRIPTOR = "2.9"
"""First torch version whose libuv store accepts a listening socket. That of 2.6 refuses it; its older store,
with the same protocol, does not."""


def open_store(address: str, port: int = 0) -> TCPStore:
    """Open a store at this address, as its first client; port 0 is any free one.

    A TCPStore that opens its own socket listens on all addresses of the machine, whatever its host (torch
    2.6 to 2.14). It does not authenticate clients, so its content cannot be trusted.

    Raises:
        OSError: it cannot listen there.
        DistError: the store did not open.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    bound: int = listener.getsockname()[1]
    return TCPStore(
        address,
        bound,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=torch.__version__ >= TAKES_DESCRIPTOR,
    )


def visit_store(host: str, port: int, timeout_seconds: float) -> TCPStore:
    """Connect to a store, with a time limit for its calls. Raises DistError if there is none."""
    timeout = timedelta(seconds=timeout_seconds)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
