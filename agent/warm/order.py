"""What the agent and the warm parent say to each other: one datagram each way, with file descriptors."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

MAX_BYTES = 1 << 20
"""Of one datagram: the kernel allows an environment more, but then a process is spawned as ever."""


@dataclass(frozen=True)
class Order:
    """A process to fork."""

    argv: Sequence[str]
    """The whole command, from the interpreter on."""
    env: Mapping[str, str]
    """All of its environment."""
    redirected: Sequence[int] = ()
    """Which of its descriptors are sent along, behind the one that it is let go by: 1, 2, both or none."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Answer:
    """Of the parent: that it is ready, which process it has forked, or why it cannot."""

    pid: int = 0
    error: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        return cls(**json.loads(data))


def connected() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep datagrams whole, and of which each sees when the other is gone."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_BYTES)
    return ends
