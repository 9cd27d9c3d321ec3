"""Slots between Pods: the protocol of a slot server (`server.py`), and its client.

A request is a line of JSON on a connection of its own, after its handshake (`agent.connection`): its verb, a
mark (round, step, rank, world size), the first byte and the one behind the last, and its sender. The answer
is another line, and then bytes.

    ["slot", [7, 120, 3, 8], 0, null, ""]              → {"bytes": n}, and the bytes
    ["offer", [7, 120, 3, 8], 0, null, "10.0.0.3:47"]  → {"held": true}, once it is fetched
    ["check", [7, 120, 3, 8], 0, null, ""]             → {"damaged": true}; then it is not here any more
    ["copies", [7, 0, 0, 1], 0, null, ""]              → {"copies": [[7, 120, 3, 8], …]}
    anything else, or what is not here                 → {"error": "…"}
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
"""Of either side, for the next byte. A server answers 64 at once, and others wait for their turn."""
BUSY_SECONDS = 180.0
"""For a server that does not answer in time: all ranks of a job may read from one after a failure."""
CHECK_SECONDS = 60.0
"""For a server to compare a slot with its sums: some gigabytes a second."""
LOOK_SECONDS = 1.0
"""Between two looks whether an answer is still wanted."""
MAX_LINE_BYTES = 4_096
CHUNK_BYTES = 8 << 20
_MAX_END_BYTES = 2 * MAX_HEADER_BYTES
"""What comes behind the tensors of a slot has no more: the header, and sums of eight bytes each."""


class FetchError(Exception):
    """The peer does not have it, or does not answer."""


class DamagedCopyError(FetchError):
    """What came differs from what was summed up there: on its way, or there (`have_checked`)."""


class SlotVerb(Enum):
    """The kind of a request."""

    SEND = "slot"
    OFFER = "offer"
    CHECK = "check"
    COPIES = "copies"
    """Asks for the copies of another agent's checkpoints; of the mark, the round alone counts."""


@dataclass(frozen=True)
class SlotRequest:
    """What a client asks for."""

    verb: SlotVerb
    mark: Mark
    start: int = 0
    """First byte, for SEND."""
    stop: int | None = None
    """Byte after the last, for SEND; None: all that is used of the slot."""
    sender: str = ""
    """Slot server that has it, for OFFER."""

    def encode(self) -> bytes:
        return encode_line([self.verb.value, astuple(self.mark), self.start, self.stop, self.sender])

    @classmethod
    def decode(cls, line: bytes) -> SlotRequest:
        """Read it; raise ValueError where it is none."""
        try:
            verb, mark, start, stop, sender = json.loads(line)
            end = None if stop is None else int(stop)
            return cls(SlotVerb(verb), Mark(*map(int, mark)), int(start), end, str(sender))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error


def encode_line(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


class SlotBytes:
    """The bytes of a slot, as they come from a server.

    Args:
        rest: those that came with the line.
    """

    def __init__(self, connection: socket.socket, nbytes: int, rest: bytes) -> None:
        self.nbytes = nbytes
        self._connection = connection
        self._rest = rest

    def fill(self, target: memoryview) -> None:
        """Receive as many as `target` has; raise OSError where they did not come."""
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
    """Ask for a slot, or a range of it.

    Args:
        address: of the slot server, `host:port`.

    Raises:
        OSError: it could not be had.
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
    """Copy a peer's slot into `slot`, which stays open.

    It is verified, and the caller may seal it.

    Args:
        address: of the peer's slot server, `host:port`.
        goes_on: asked after each chunk; once it says no, the fetch ends.
        share: of the time that the fetch may take, asked after each chunk; below 1 it pauses then, for the
            sake of training.

    Raises:
        FetchError: it could not be had.
        DamagedCopyError: it is not what was summed up there.
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
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # of torch, where a header makes no sense
        raise FetchError(f"{address}: {error}") from error


def _receive_slot(
    source: SlotBytes, slot: Slot, goes_on: Callable[[], bool], share: Callable[[], float]
) -> None:
    """Receive all bytes of a slot but its commit word; raise OSError or FetchError where not all came."""
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
    """Read a range of a slot. A server that has too much to do is asked again, for BUSY_SECONDS.

    Args:
        stop: None for the end of the slot; then it begins with the header.

    Raises:
        OSError: it could not be had; the message names the address.
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
            logger.info("%s has much to do, and is asked again: %s", address, error)
        except OSError as error:
            raise RefusedError(f"{address}: {error}") from error


def is_there(address: str) -> bool:
    """Whether a slot server takes connections there."""
    try:
        socket.create_connection(_host_and_port(address), LOOK_SECONDS).close()
    except TimeoutError:
        return True  # it may have too much to do; one that is gone is refused, or will be
    except OSError:
        return False
    return True


def have_checked(address: str, key: bytes, mark: Mark) -> None:
    """Have a server compare its slot with its sums, after a copy of it was damaged.

    If the slot is damaged, the server does not hold it any more. Else what was damaged is the copy.
    """
    try:
        with _connect(address, key) as connection:
            connection.settimeout(CHECK_SECONDS)
            connection.sendall(SlotRequest(SlotVerb.CHECK, mark).encode())
            _answer(connection)
    except OSError as error:
        logger.warning("%s was not told that a copy of its slot is damaged: %s", address, error)


def copies(address: str, key: bytes, round_: int) -> list[Mark]:
    """What a server's agent holds of the checkpoints that another agent's processes wrote in that round.

    Raises:
        OSError: there was no answer.
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
    """Offer a slot to a peer, and wait until it has fetched it; tell whether it holds it.

    Args:
        goes_on: asked every second while the answer is waited for.

    Raises:
        OSError: there was no answer.
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
    """Return the answer, and what came with it; raise OSError where there was none."""
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
