"""Proof of the job's key at the beginning of a connection: challenge and response by HMAC-SHA256 (RFC 2104).

    server → client    server's nonce
    client → server    service, client's nonce, HMAC(key, "client" + service + both nonces + address)
    server → client    HMAC(key, "server" + service + both nonces + address)

The nonces defeat replayed handshakes, the roles reflected proofs, and the server's address defeats a Pod that
got the address of an agent which is gone. The data that follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
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
LATE_SECONDS = HANDSHAKE_SECONDS / 2
"""Age from which the server may have closed a connection for its age, since clocks differ."""
CONNECT_SECONDS = 10.0
"""Time limit for a connection and its handshake."""
ATTEMPT_SECONDS = 0.25
"""Time for the first attempt to connect, doubled for each later one. If a flood of connections fills the
agent's queue, the kernel by itself would retry only after a second."""


class RefusedError(ConnectionError):
    """The other side has another key, or does not offer the service."""


def key_from_text(text: str) -> bytes:
    """Decode a key as its Secret has it; raise ValueError if it is not 64 hexadecimal digits."""
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
    def draw(
        cls, key: bytes, address: bytes, draw: Callable[[int], bytes] = secrets.token_bytes
    ) -> Challenge:
        """Draw a nonce for a new connection."""
        return cls(key, address, draw(NONCE_BYTES))

    def accept(self, response: bytes) -> tuple[str, bytes] | None:
        """Check a client's response, of RESPONSE_BYTES.

        Returns:
            The requested service, and the server's proof; None if the client does not have the key.
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


class _Stage(Enum):
    """Stage of an attempt, named by the next thing to wait for."""

    CONNECTION = 0
    NONCE = 1
    PROOF = 2
    END = 3
    """The server has proved the key, or cannot."""


class HandshakeClient:
    """The client's side, over several attempts. It does no I/O: `connect` carries it out.

    Each attempt begins with `begin`. `connected` follows, then `receive` until nothing is `wanted`, and
    `fail` after an error.

    Args:
        seconds: time limit, of at most CONNECT_SECONDS.
        draw: makes nonces.
    """

    def __init__(
        self,
        key: bytes,
        service: str,
        seconds: float,
        now: float,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._key = key
        self._service = service.encode().ljust(SERVICE_BYTES, b"\0")
        self._draw = draw
        self._deadline = now + min(seconds, CONNECT_SECONDS)
        self._attempt_seconds = ATTEMPT_SECONDS
        self._address = self._proven = b""
        self._received = bytearray()
        self.begin(now)

    def begin(self, now: float) -> None:
        """Begin an attempt, which first needs a connection."""
        self._stage = _Stage.CONNECTION
        self._began_at = now
        self._length = 0
        self._received.clear()
        self.until = min(now + self._attempt_seconds, self._deadline)
        """Time limit of the current stage; after `fail`, the time of the next attempt."""

    @property
    def wanted(self) -> int:
        """Most bytes to read now: further ones are the service's. 0: the key is proved."""
        return self._length - len(self._received)

    def connected(self, address: bytes) -> None:
        """Continue with a connection to an address, from `packed_address`."""
        self._stage, self._address, self._length = _Stage.NONCE, address, NONCE_BYTES

    def receive(self, data: bytes, now: float) -> bytes:
        """Process data, empty at the end of the connection; return the bytes to send.

        Raises:
            TimeoutError: the time is over, even if bytes still trickle in.
            RefusedError: the server closed the connection, or does not have the key.
        """
        if not data:
            raise RefusedError(
                "the agent closed the connection: it has another key or address, or has not begun to serve"
            )
        self._received += data
        if self.wanted:
            if now >= self.until:
                raise TimeoutError("timed out")
            return b""
        received = bytes(self._received)
        self._received.clear()
        if self._stage is _Stage.NONCE:
            return self._answer(received)
        self._stage, self._length = _Stage.END, 0
        if not hmac.compare_digest(received, _proof(self._key, b"server", self._proven)):
            raise RefusedError("it is no agent of this job")
        return b""

    def _answer(self, nonce: bytes) -> bytes:
        self._stage, self._length, self.until = _Stage.PROOF, PROOF_BYTES, self._deadline
        ours = self._draw(NONCE_BYTES)
        self._proven = self._service + nonce + ours + self._address
        return self._service + ours + _proof(self._key, b"client", self._proven)

    def fail(self, error: OSError, now: float) -> None:
        """Plan the next attempt, at `until`, if the server was too busy or one side too slow.

        Raises:
            OSError: another attempt would not help, or the time is over.
        """
        is_timeout = isinstance(error, TimeoutError)
        is_closed = isinstance(error, ConnectionError)
        is_busy = is_timeout if self._stage is _Stage.CONNECTION else self._stage is _Stage.NONCE
        is_late = self._stage is _Stage.PROOF and now >= self._began_at + LATE_SECONDS
        if not (is_timeout or is_closed) or not (is_busy or is_late):
            raise error
        if now >= self._deadline:
            raise TimeoutError("the agent has not answered in time") from error
        if is_late:  # one side was suspended meanwhile; the server accepts no proof after its time
            self.until, self._attempt_seconds = now, ATTEMPT_SECONDS
        else:
            self._attempt_seconds *= 2


def connect(host: str, port: int, key: bytes, service: str, seconds: float = math.inf) -> socket.socket:
    """Connect to a service of an agent of the same job.

    Args:
        service: the name under which the agent offers it.
        seconds: time limit, of at most CONNECT_SECONDS.

    Returns:
        A blocking socket with a time limit of CONNECT_SECONDS for each call.

    Raises:
        OSError: the agent cannot be reached.
        RefusedError: the agent has another key, or does not offer the service now.
    """
    client = HandshakeClient(key, service, seconds, time.monotonic())
    while True:
        try:
            return _attempt(host, port, client)
        except OSError as error:
            client.fail(error, time.monotonic())
        time.sleep(_seconds_until(client.until))
        client.begin(time.monotonic())


def _attempt(host: str, port: int, client: HandshakeClient) -> socket.socket:
    connection = socket.create_connection((host, port), _seconds_until(client.until))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connected(packed_address(connection.getpeername()))
        while client.wanted:
            connection.settimeout(_seconds_until(client.until))
            connection.sendall(client.receive(connection.recv(client.wanted), time.monotonic()))
        connection.settimeout(CONNECT_SECONDS)
    except BaseException:
        connection.close()
        raise
    return connection


def _seconds_until(moment: float) -> float:
    return max(moment - time.monotonic(), 0.001)


def _proof(key: bytes, role: bytes, proven: bytes) -> bytes:
    return hmac.digest(key, role + proven, "sha256")
