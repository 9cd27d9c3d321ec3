"""torch's TCPStore on one address alone."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

BACKLOG = 4_096
"""Clients that may wait in the kernel. It has a limit of its own (net.core.somaxconn)."""


def open_store(address: str, port: int = 0) -> TCPStore:
    """Open a store for others to connect to, as its first client.

    A TCPStore that opens its own socket listens on all addresses of the machine, whatever host it is given
    (torch 2.6 to 2.14), and asks nobody for a proof. So nothing in it is to be trusted.

    Args:
        address: the address to listen on.
        port: 0 for any free one.

    Raises:
        OSError: it cannot listen there.
        DistError: the store did not open.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=BACKLOG)
    bound: int = listener.getsockname()[1]
    return TCPStore(
        address, bound, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def visit_store(host: str, port: int, timeout_seconds: float) -> TCPStore:
    """Connect to a store, and give its calls that time.

    Raises:
        DistError: there is none.
    """
    timeout = timedelta(seconds=timeout_seconds)
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
