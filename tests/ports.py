"""Ports for what binds them later."""

from __future__ import annotations

import contextlib
import os
import random
import socket

RANGE = range(20_000, 32_000)
"""Below what the kernel gives to connections and to whoever asks for any port (ip_local_port_range)."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and that nobody is given who does not ask for it.

    Each process of pytest has ports of its own: what is free now is bound later.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in random.SystemRandom().sample(RANGE[worker % 16 :: 16], 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("none of 100 ports is free")
