"""What is asked of a slot server, and how: its protocol and its client.

A request is a line of JSON on a connection of its own, after its handshake (`agent.connection`); the answer
is another line, and then bytes. A mark is
[round, step, rank, world size].

    {"slot": [7, 120, 3, 8], "start": 0, "stop": null}                     → {"bytes": n}, and the bytes
    {"offer": [7, 120, 3, 8], "from": "10.0.0.3:4711"}                     → {"held": true}, once fetched
    {"check": [7, 120, 3, 8]}                      → {"damaged": true}, and then it is not here any more
    {"copies": [7, 0, 0, 1]}        → {"copies": [[7, 120, 3, 8], …]}: what is here of another agent's round
    anything else, or what is not here                                     → {"error": "…"}
"""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from agent.connection import handshake
from agent.connection.handshake import RefusedError
from agent.slots.slot import Mark

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


class Verb(Enum):
    """What a request is for."""

    SEND = "slot"
    OFFER = "offer"
    CHECK = "check"
    COPIES = "copies"
    """Asks for copies; of the mark, the round alone counts."""


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    verb: Verb
    mark: Mark
    start: int = 0
    """First byte, for SEND."""
    stop: int | None = None
    """Byte after the last, for SEND; None: all that is used of the slot."""
    sender: str = ""
    """Slot server that has it, for OFFER."""

    def encode(self) -> bytes:
        """Encode as a line."""
        fields: dict[str, Any] = {self.verb.value: astuple(self.mark)}
        if self.verb is Verb.SEND:
            fields |= {"start": self.start, "stop": self.stop}
        if self.verb is Verb.OFFER:
            fields["from"] = self.sender
        return encode_answer(fields)

    @classmethod
    def decode(cls, line: bytes) -> Request:
        """Read it.

        Raises:
            ValueError: it is none.
        """
        fields = decode_answer(line)
        for verb in Verb:
            if verb.value in fields:
                break
        else:
            raise ValueError("a request that nobody knows")
        try:
            stop = fields.get("stop")
            return cls(
                verb,
                _mark(fields[verb.value]),
                int(fields.get("start") or 0),
                None if stop is None else int(stop),
                str(fields.get("from", "")),
            )
        except TypeError as error:
            raise ValueError(str(error)) from error


def _mark(numbers: Iterable[Any]) -> Mark:
    """Read one.

    Raises:
        ValueError, TypeError: it is none.
    """
    round_, step, rank, world_size = map(int, numbers)
    return Mark(round_, step, rank, world_size)


def encode_answer(fields: Mapping[str, Any]) -> bytes:
    """Encode as a line."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_answer(line: bytes) -> dict[str, Any]:
    """Read a line.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    return fields


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
        """Receive as many as `target` has.

        Raises:
            OSError: they did not come.
        """
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
        key: the job's.
        mark: what it is to hold.

    Raises:
        OSError: it could not be had.
    """
    with _connect(address, key) as connection:
        connection.sendall(Request(Verb.SEND, mark, start, stop).encode())
        answer, rest = _answer(connection)
        nbytes = answer.get("bytes")
        if type(nbytes) is not int or nbytes < 0 or (stop is not None and nbytes != stop - start):
            raise RefusedError(str(answer.get("error") or "it sent no slot"))
        yield SlotBytes(connection, nbytes, rest)


def read(address: str, key: bytes, mark: Mark, start: int, stop: int | None) -> bytearray:
    """A range of a slot. A server that has too much to do is asked again, for BUSY_SECONDS.

    Raises:
        OSError: it could not be had; the message names the address.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with receive(address, key, mark, start, stop) as source:
                data = bytearray(source.nbytes)
                source.fill(memoryview(data))
                return data
        except TimeoutError as error:
            if time.monotonic() >= deadline or not is_there(address):
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
            connection.sendall(Request(Verb.CHECK, mark).encode())
            _answer(connection)
    except OSError as error:
        logger.warning("%s was not told that a copy of its slot is damaged: %s", address, error)


def copies(address: str, key: bytes, round_: int) -> list[Mark]:
    """What a server's agent holds of the checkpoints that another agent's processes wrote in that round.

    Raises:
        OSError: there was no answer.
    """
    with _connect(address, key) as connection:
        connection.sendall(Request(Verb.COPIES, Mark(round_, 0, 0, 1)).encode())
        answer, _ = _answer(connection)
    try:
        return [_mark(numbers) for numbers in answer["copies"]]
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
        patience_seconds: for its answer.
        goes_on: asked every second while the answer is waited for.

    Raises:
        OSError: there was no answer.
    """
    deadline = time.monotonic() + patience_seconds
    with _connect(address, key) as connection:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        connection.sendall(Request(Verb.OFFER, mark, sender=own_address).encode())
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
    """Return the answer, and what came with it.

    Raises:
        OSError: there was none.
    """
    received = b""
    while b"\n" not in received:
        part = connection.recv(MAX_LINE_BYTES)
        if not part or len(received) > MAX_LINE_BYTES:
            raise RefusedError("it closed the connection")
        received += part
    line, _, rest = received.partition(b"\n")
    try:
        return decode_answer(line), rest
    except ValueError as error:
        raise RefusedError(f"it answered something else: {error}") from error
