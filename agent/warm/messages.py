"""The messages between the agent and the warm parent: one datagram each way, with file descriptors."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

MAX_BYTES = 1 << 20
"""The size of the largest datagram. The kernel allows a larger environment, but then a process is spawned."""


@dataclass(frozen=True)
class ForkRequest:
    """The agent asks for a process."""

    argv: Sequence[str]
    """The whole command, from the interpreter on."""
    env: Mapping[str, str]
    """Its whole environment."""
    redirected: Sequence[int] = ()
    """Those of its descriptors that are sent along (1, 2, both or none). The first descriptor that is sent is
    the pipe on which the process waits for permission to run."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ForkRequest:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class ParentReply:
    """The parent says that it is ready, which process it has forked, or why it cannot fork."""

    pid: int = 0
    """Of the process that was forked; 0 when the parent has just become ready."""
    error: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ParentReply:
        return cls(**json.loads(data))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Open two connected ends that keep datagrams whole; each sees when the other is gone."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_BYTES)
    return ends
