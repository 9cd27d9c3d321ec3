"""Proof of the job's key at the beginning of a connection: challenge and response by HMAC-SHA256 (RFC 2104).

    server → client    server's nonce
    client → server    service, client's nonce, HMAC(key, "client" + service + both nonces + address)
    server → client    HMAC(key, "server" + service + both nonces + address)

The nonces keep recorded handshakes out, the roles proofs that are sent back to their author, and the server's
address a Pod that got the address of an agent which is gone. What follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from crds.names import ENV_JOB_KEY

KEY_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
SERVICE_BYTES = 24
"""Length of a service's name on the wire, padded with zeros."""
RESPONSE_BYTES = SERVICE_BYTES + NONCE_BYTES + PROOF_BYTES

HANDSHAKE_SECONDS = 1.0
"""Time limit for a new connection to prove the job's key."""
CONNECT_SECONDS = 10.0
"""Time limit for a connection and its handshake."""
ATTEMPT_SECONDS = 0.25
"""Time for the first attempt to connect; each later one has twice as long. Where a flood of connections fills
the agent's queue, the kernel would wait for a second before it knocks again."""


class RefusedError(ConnectionError):
    """The other side has another key, or does not offer the service."""


def key_from_text(text: str) -> bytes:
    """Read a key as its Secret has it; raise ValueError where it is not 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{ENV_JOB_KEY} is not {2 * KEY_BYTES} hexadecimal digits")
    return key


@dataclass(frozen=True)
class Challenge:
    """The server's side of one handshake."""

    key: bytes = field(repr=False)
    address: bytes
    """The address and port that the server listens on, from `packed_address`."""
    nonce: bytes

    @classmethod
    def draw(cls, key: bytes, address: bytes) -> Challenge:
        """Draw a nonce for a new connection."""
        return cls(key, address, secrets.token_bytes(NONCE_BYTES))

    def accept(self, response: bytes) -> tuple[str, bytes] | None:
        """Check a client's response, of RESPONSE_BYTES.

        Returns:
            The service that the client asks for, and the server's proof for it; None if the client does not
            have the key.
        """
        service = response[:SERVICE_BYTES]
        theirs = response[SERVICE_BYTES : SERVICE_BYTES + NONCE_BYTES]
        proof = response[SERVICE_BYTES + NONCE_BYTES :]
        proven = service + self.nonce + theirs + self.address
        if not hmac.compare_digest(proof, _proof(self.key, b"client", proven)):
            return None
        return service.rstrip(b"\0").decode(errors="replace"), _proof(self.key, b"server", proven)


def packed_address(name: tuple[Any, ...]) -> bytes:
    """Return the address and port of a socket's name; both ends of a connection see the same."""
    host, port = str(name[0]), int(name[1])
    return ipaddress.ip_address(host.partition("%")[0]).packed + port.to_bytes(2, "big")


def connect(host: str, port: int, key: bytes, service: str, seconds: float = math.inf) -> socket.socket:
    """Connect to a service of an agent of the same job.

    Args:
        service: the name under which the agent offers it.
        seconds: time limit, of at most CONNECT_SECONDS.

    Returns:
        A blocking socket with a time limit of CONNECT_SECONDS for each call.

    Raises:
        OSError: the agent cannot be reached.
        RefusedError: it has another key, or does not offer the service now.
    """
    deadline = time.monotonic() + min(seconds, CONNECT_SECONDS)
    while True:
        began_at = time.monotonic()
        try:
            return _connected(host, port, key, service, deadline)
        except ConnectionError:  # a process that was stopped meanwhile has proved the key too late
            if not began_at + HANDSHAKE_SECONDS <= time.monotonic() < deadline:
                raise


def _connected(host: str, port: int, key: bytes, service: str, deadline: float) -> socket.socket:
    connection, nonce = _challenged(host, port, deadline)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = service.encode().ljust(SERVICE_BYTES, b"\0")
        ours = secrets.token_bytes(NONCE_BYTES)
        proven = name + nonce + ours + packed_address(connection.getpeername())
        connection.sendall(name + ours + _proof(key, b"client", proven))
        proof = _receive(connection, PROOF_BYTES, deadline)
        if not hmac.compare_digest(proof, _proof(key, b"server", proven)):
            raise RefusedError(f"{host}:{port} is no agent of this job")
        connection.settimeout(CONNECT_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection


def _challenged(host: str, port: int, deadline: float) -> tuple[socket.socket, bytes]:
    """Connect, and receive the server's nonce; again where the server is too busy to take the connection.

    Raises:
        OSError: the agent cannot be reached by the deadline, or does not listen.
    """
    seconds = ATTEMPT_SECONDS
    while True:
        attempt_deadline = min(time.monotonic() + seconds, deadline)
        try:
            return _challenged_once(host, port, attempt_deadline)
        except (TimeoutError, RefusedError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(max(attempt_deadline - time.monotonic(), 0.0))  # where it was closed at once
        seconds *= 2


def _challenged_once(host: str, port: int, deadline: float) -> tuple[socket.socket, bytes]:
    connection = socket.create_connection((host, port), max(deadline - time.monotonic(), 0.001))
    try:
        return connection, _receive(connection, NONCE_BYTES, deadline)
    except BaseException:
        connection.close()
        raise


def _proof(key: bytes, role: bytes, proven: bytes) -> bytes:
    return hmac.digest(key, role + proven, "sha256")


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Receive exactly so many bytes, and no more: what follows is the service's.

    Raises:
        OSError: they have not come by the deadline, however slowly they trickle, or the connection has ended.
    """
    received = b""
    while len(received) < count:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left_seconds)
        part = connection.recv(count - len(received))
        if not part:
            raise RefusedError(
                "the agent closed the connection: it has another key or address, or has not begun to serve"
            )
        received += part
    return received
