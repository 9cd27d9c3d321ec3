"""Ports for what binds them later."""

from __future__ import annotations

import random
import socket

RANGE = range(20_000, 32_000)
"""Below what the kernel gives to connections and to whoever asks for any port (ip_local_port_range)."""


_marks: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and that nobody is given who does not ask for it.

    Test processes that ask here get others as long as this one runs: the port may be bound late.
    """
    for port in random.SystemRandom().sample(RANGE, 100):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0dlr-test-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                _marks.append(mark)
                return port
        except OSError:
            mark.close()
    raise OSError("none of 100 ports is free")
