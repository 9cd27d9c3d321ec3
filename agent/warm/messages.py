"""Messages between the agent and the warm parent: one datagram each way, with file descriptors.

A request is in a file in memory, whose descriptor the datagram has, since an environment of megabytes does
not fit into a datagram (net.core.wmem_max).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from agent.slots.pages import memory_file

MAX_BYTES = 64 << 10
"""Largest size of a datagram."""
REQUEST = b"request"
MAX_DESCRIPTORS = 4
"""Largest number of a request's descriptors: its file, the pipe of the permission, stdout and stderr."""


@dataclass(frozen=True)
class ForkRequest:
    """Request of the agent for a process."""

    argv: Sequence[str]
    """The whole command, from the interpreter on."""
    env: Mapping[str, str]
    """The whole environment."""
    redirected: Sequence[int] = ()
    """Numbers of the redirected descriptors (1, 2, both or none), which are sent after the request's file and
    the pipe on which the process waits for permission to run."""

    def to_file(self) -> int:
        """Write it to a file in memory, and return the descriptor.

        Raises:
            OSError: the kernel refuses.
        """
        descriptor = memory_file("dlr-fork-request")
        with open(os.dup(descriptor), "wb") as file:  # noqa: PTH123
            file.write(json.dumps(asdict(self)).encode())
        return descriptor

    @classmethod
    def of_file(cls, descriptor: int) -> ForkRequest:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return cls(**json.loads(data))


@dataclass(frozen=True)
class ParentReply:
    """Reply of the parent: it is ready, has forked a process, or cannot fork."""

    pid: int = 0
    """Id of the forked process; 0 when the parent has just become ready."""
    error: str = ""
    """Reason why it cannot fork; else empty."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ParentReply:
        return cls(**json.loads(data))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Open two connected sockets for datagrams; each notices when the other is closed."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
