"""The messages between the agent and the warm parent: one datagram each way, with file descriptors.

A request is in a file in memory, of which the datagram has the descriptor: an environment may have megabytes,
and a datagram may not (net.core.wmem_max).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from agent.slots.pages import memory_file

MAX_BYTES = 64 << 10
"""The size of the largest datagram."""
REQUEST = b"request"
MAX_DESCRIPTORS = 4
"""Of a request: its file, the pipe of the permission, and what the process gets as its 1 and 2."""


@dataclass(frozen=True)
class ForkRequest:
    """The agent asks for a process."""

    argv: Sequence[str]
    """The whole command, from the interpreter on."""
    env: Mapping[str, str]
    """Its whole environment."""
    redirected: Sequence[int] = ()
    """The descriptors that are sent along (1, 2, both or none), after the file of the request and the pipe on
    which the process waits for permission to run."""

    def to_file(self) -> int:
        """Write it to a file in memory, and return the descriptor.

        Raises:
            OSError: the kernel gives none.
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
    """The parent says that it is ready, which process it has forked, or why it cannot fork."""

    pid: int = 0
    """Process id of the fork; 0 when the parent has just become ready."""
    error: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ParentReply:
        return cls(**json.loads(data))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Open two connected ends that keep datagrams whole; each sees when the other is gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
