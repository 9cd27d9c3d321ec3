"""Slots between Pods: the protocol of a slot server (`server.py`), and its client.

A request is a line of JSON on a connection of its own, after the handshake (`agent.connection`): a verb, a
mark (round, step, rank, world size), the first byte, the end, and the sender. The answer is another line,
followed by bytes.

    ["slot", [7, 120, 3, 8], 0, null, ""]              → {"bytes": n}, and the bytes
    ["offer", [7, 120, 3, 8], 0, null, "10.0.0.3:47"]  → {"held": true}, once it is fetched
    ["check", [7, 120, 3, 8], 0, null, ""]             → {"damaged": true}; the server then drops it
    ["copies", [7, 0, 0, 1], 0, null, ""]              → {"copies": [[7, 120, 3, 8], …]}
    anything else, or a missing slot                   → {"error": "…"}
"""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from agent.connection import handshake
from agent.connection.handshake import RefusedError
from agent.slots.format import CONTROL_BYTES, MAX_HEADER_BYTES, Mark
from agent.slots.slot import DamagedError, Slot

logger = logging.getLogger(__name__)

SERVICE = "slots"
TIMEOUT_SECONDS = 30.0
"""Time limit of either side for the next byte. A server answers 64 clients at once; others wait for their
turn."""
BUSY_SECONDS = 180.0
"""Time for retries with a busy server: all ranks of a job may read from one after a failure."""
CHECK_SECONDS = 60.0
"""Time limit for a server to compare a slot with its sums, at some gigabytes a second."""
LOOK_SECONDS = 1.0
"""Interval of the checks whether an answer is still wanted."""
MAX_LINE_BYTES = 4_096
CHUNK_BYTES = 8 << 20
_MAX_END_BYTES = 2 * MAX_HEADER_BYTES
"""Largest size of the header and the sums, of eight bytes each, behind the tensors of a slot."""


class FetchError(Exception):
    """The peer does not have the slot, or does not answer."""


class DamagedCopyError(FetchError):
    """A copy differs from the server's sums: it, or the slot itself, is damaged (`have_checked`)."""


class SlotVerb(Enum):
    """Kind of a request."""

    SEND = "slot"
    OFFER = "offer"
    CHECK = "check"
    COPIES = "copies"
    """Request for the replicas of another agent's checkpoints; only the round of the mark counts."""


@dataclass(frozen=True)
class SlotRequest:
    """Request of a client."""

    verb: SlotVerb
    mark: Mark
    start: int = 0
    """First byte, for SEND."""
    stop: int | None = None
    """Byte after the last, for SEND; None for the end of the slot's used part."""
    sender: str = ""
    """Address of the slot server that has the slot, for OFFER."""

    def encode(self) -> bytes:
        return encode_line([self.verb.value, astuple(self.mark), self.start, self.stop, self.sender])

    @classmethod
    def decode(cls, line: bytes) -> SlotRequest:
        """Decode it; raise ValueError if it is malformed."""
        try:
            verb, mark, start, stop, sender = json.loads(line)
            end = None if stop is None else int(stop)
            return cls(SlotVerb(verb), Mark(*map(int, mark)), int(start), end, str(sender))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error


def encode_line(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


class SlotBytes:
    """Incoming bytes of a slot.

    Args:
        rest: bytes that were received with the line of the answer.
    """

    def __init__(self, connection: socket.socket, nbytes: int, rest: bytes) -> None:
        self.nbytes = nbytes
        self._connection = connection
        self._rest = rest

    def fill(self, target: memoryview) -> None:
        """Receive bytes until `target` is full; raise OSError if the connection fails."""
        at = min(len(self._rest), len(target))
        target[:at], self._rest = self._rest[:at], self._rest[at:]
        while at < len(target):
            count = self._connection.recv_into(target[at:])
            if not count:
                raise RefusedError("it closed the connection")
            at += count


@contextmanager
def receive(
    address: str, key: bytes, mark: Mark, start: int = 0, stop: int | None = None
) -> Iterator[SlotBytes]:
    """Request a slot, or a range of it.

    Args:
        address: address of the slot server, `host:port`.

    Raises:
        OSError: the server does not have it, or does not answer.
    """
    with _connect(address, key) as connection:
        connection.sendall(SlotRequest(SlotVerb.SEND, mark, start, stop).encode())
        answer, rest = _answer(connection)
        nbytes = answer.get("bytes")
        if type(nbytes) is not int or nbytes < 0 or (stop is not None and nbytes != stop - start):
            raise RefusedError(str(answer.get("error") or "it sent no slot"))
        yield SlotBytes(connection, nbytes, rest)


def fetch(
    address: str,
    key: bytes,
    mark: Mark,
    slot: Slot,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    share: Callable[[], float] = lambda: 1.0,
) -> None:
    """Copy a peer's slot into `slot`, and verify it. It stays open until the caller seals it.

    Args:
        address: address of the peer's slot server, `host:port`.
        goes_on: called for each chunk; the fetch ends when it returns False.
        share: called after each chunk; returns the share of the time in which the fetch may use the network.
            Below 1 it pauses, so that training has the rest.

    Raises:
        FetchError: it could not be fetched.
        DamagedCopyError: the copy differs from its sums.
    """
    slot.begin()
    try:
        with receive(address, key, mark) as source:
            if not CONTROL_BYTES <= source.nbytes <= slot.size:
                raise FetchError(f"{source.nbytes:,} bytes do not fit into a slot of {slot.size:,}")
            _receive_slot(source, slot, goes_on, share)
        slot.verify()
    except DamagedError as error:
        raise DamagedCopyError(f"{address}: {error}") from error
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # torch's, for a malformed header
        raise FetchError(f"{address}: {error}") from error


def _receive_slot(
    source: SlotBytes, slot: Slot, goes_on: Callable[[], bool], share: Callable[[], float]
) -> None:
    """Receive all bytes of a slot except its commit word; raise OSError or FetchError if any are missing."""
    control = bytearray(CONTROL_BYTES)
    source.fill(memoryview(control))
    slot.take_control(control)
    for start in range(CONTROL_BYTES, source.nbytes, CHUNK_BYTES):
        if not goes_on():
            raise FetchError("it is not wanted any more")
        began_at = time.monotonic()
        with slot.bytes(start, min(start + CHUNK_BYTES, source.nbytes)) as chunk:
            source.fill(chunk)
        time.sleep((time.monotonic() - began_at) * (1 / share() - 1))


def read(
    address: str,
    key: bytes,
    mark: Mark,
    start: int,
    stop: int | None,
    monotonic: Callable[[], float] = time.monotonic,
) -> bytearray:
    """Read a range of a slot, with retries for BUSY_SECONDS if the server is busy.

    Args:
        stop: None for the end of the slot; `start` is then the header.

    Raises:
        OSError: it could not be read; the message names the address.
    """
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            with receive(address, key, mark, start, stop) as source:
                if stop is None and source.nbytes > _MAX_END_BYTES:
                    raise RefusedError(f"it has {source.nbytes:,} bytes of a header and sums")
                data = bytearray(source.nbytes)
                source.fill(memoryview(data))
                return data
        except TimeoutError as error:
            if monotonic() >= deadline or not is_there(address):
                raise RefusedError(f"{address}: {error}") from error
            logger.info("%s is busy, and is asked again: %s", address, error)
        except OSError as error:
            raise RefusedError(f"{address}: {error}") from error


def is_there(address: str) -> bool:
    """Return whether a slot server accepts connections at this address."""
    try:
        socket.create_connection(_host_and_port(address), LOOK_SECONDS).close()
    except TimeoutError:
        return True  # it may be busy; a connection to a server that is gone is refused sooner or later
    except OSError:
        return False
    return True


def have_checked(address: str, key: bytes, mark: Mark) -> None:
    """Have a server compare a slot with its sums, after a copy of it was damaged.

    The server drops the slot if it is damaged. Otherwise only the copy was.
    """
    try:
        with _connect(address, key) as connection:
            connection.settimeout(CHECK_SECONDS)
            connection.sendall(SlotRequest(SlotVerb.CHECK, mark).encode())
            _answer(connection)
    except OSError as error:
        logger.warning("%s could not check its slot, of which a copy is damaged: %s", address, error)


def copies(address: str, key: bytes, round_: int) -> list[Mark]:
    """Return the marks of a server's replicas that another agent's processes wrote in that round.

    Raises:
        OSError: the server does not answer.
    """
    with _connect(address, key) as connection:
        connection.sendall(SlotRequest(SlotVerb.COPIES, Mark(round_, 0, 0, 1)).encode())
        answer, _ = _answer(connection)
    try:
        return [Mark(*map(int, numbers)) for numbers in answer["copies"]]
    except (KeyError, ValueError, TypeError) as error:
        raise RefusedError(f"{address} answered something else: {error}") from error


def offer(
    address: str,
    key: bytes,
    mark: Mark,
    own_address: str,
    patience_seconds: float,
    goes_on: Callable[[], bool] = lambda: True,
) -> bool:
    """Offer a slot to a peer, wait until it has fetched it, and return whether it holds it.

    Args:
        goes_on: called every second during the wait, which ends when it returns False.

    Raises:
        OSError: the peer does not answer.
    """
    deadline = time.monotonic() + patience_seconds
    with _connect(address, key) as connection:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        connection.sendall(SlotRequest(SlotVerb.OFFER, mark, sender=own_address).encode())
        while not poll.poll(min(LOOK_SECONDS, max(deadline - time.monotonic(), 0)) * 1000):
            if not goes_on() or time.monotonic() >= deadline:
                raise RefusedError(f"{address} has not answered")
        return bool(_answer(connection)[0].get("held"))


def _connect(address: str, key: bytes) -> socket.socket:
    connection = handshake.connect(*_host_and_port(address), key, SERVICE)
    connection.settimeout(TIMEOUT_SECONDS)
    return connection


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise RefusedError(f"{address!r} is no address")
    return host.strip("[]"), int(port)


def _answer(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the answer, and the bytes received with it; raise OSError if there is none."""
    received = b""
    while b"\n" not in received:
        part = connection.recv(MAX_LINE_BYTES)
        if not part or len(received) > MAX_LINE_BYTES:
            raise RefusedError("it closed the connection")
        received += part
    line, _, rest = received.partition(b"\n")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"it answered something else: {error}") from error
    if not isinstance(answer, dict):
        raise RefusedError("it answered something else")
    return answer, rest
