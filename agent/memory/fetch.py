"""Fetches a slot from a peer's agent into one of our own: whole and verified, or not at all."""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.memory.server import MAX_LINE_BYTES, TIMEOUT_SECONDS
from agent.memory.slot import CONTROL_BYTES, DamagedError, Mark, Slot

logger = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
CHECK_SECONDS = 60.0
"""For a peer to compare a slot with its sums: some gigabytes a second."""
LOOK_SECONDS = 1.0
"""Between two looks whether an answer is still wanted."""


class FetchError(Exception):
    """The peer does not have it, or does not answer."""


class DamagedCopyError(FetchError):
    """What came differs from what was summed up there: on its way, or there (`have_checked`)."""


def fetch(
    address: str,
    mark: Mark,
    slot: Slot,
    *,
    goes_on: Callable[[], bool] = lambda: True,
    share: float = 1.0,
) -> None:
    """Copy a peer's slot into `slot`, which stays open.

    It is verified, and the caller may seal it.

    Args:
        address: of the peer's slot server, `host:port`.
        mark: what is wanted.
        goes_on: asked now and then; once it says no, the fetch ends.
        share: of the time that it may take; below 1 it pauses after each chunk, for the sake of training.

    Raises:
        FetchError: it could not be had.
        DamagedCopyError: it is not what was summed up there.
    """
    slot.begin()
    request = {"round": mark.round, "step": mark.step, "rank": mark.rank, "start": None, "stop": None}
    try:
        with _connect(address) as connection:
            _send(connection, request)
            answer, rest = _answer(connection)
            if "bytes" not in answer:
                raise FetchError(str(answer.get("error") or "it sent no slot"))
            size = int(answer["bytes"])
            if not CONTROL_BYTES <= size <= slot.size:
                raise FetchError(f"{size:,} bytes do not fit into a slot of {slot.size:,}")
            _receive(connection, slot, size, rest, goes_on, share)
        slot.verify()
    except DamagedError as error:
        raise DamagedCopyError(f"{address}: {error}") from error
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise FetchError(f"{address}: {error}") from error


def have_checked(address: str, mark: Mark) -> None:
    """Have a peer compare its slot with its sums, after a copy of it was damaged.

    If the slot is damaged, the peer does not hold it any more. Else what was damaged is the copy.
    """
    try:
        with _connect(address) as connection:
            connection.settimeout(CHECK_SECONDS)
            _send(connection, {"check": [mark.round, mark.step, mark.rank, mark.world_size]})
            _answer(connection)
    except (OSError, ValueError) as error:
        logger.warning("%s was not told that a copy of its slot is damaged: %s", address, error)


def offer(
    address: str,
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
        FetchError: there was no answer.
    """
    request = {"offer": [mark.round, mark.step, mark.rank, mark.world_size], "from": own_address}
    deadline = time.monotonic() + patience_seconds
    try:
        with _connect(address) as connection:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            _send(connection, request)
            while not poll.poll(LOOK_SECONDS * 1000):
                if not goes_on() or time.monotonic() >= deadline:
                    raise FetchError(f"{address} has not answered")
            return bool(_answer(connection)[0].get("held"))
    except (OSError, ValueError) as error:
        raise FetchError(f"{address}: {error}") from error


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send(connection: socket.socket, request: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(request).encode() + b"\n")


def _answer(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the answer, and what came with it.

    Raises:
        OSError, ValueError: there was none.
    """
    received = b""
    while b"\n" not in received:
        part = connection.recv(MAX_LINE_BYTES)
        if not part or len(received) > MAX_LINE_BYTES:
            raise ValueError("it closed the connection")
        received += part
    line, _, rest = received.partition(b"\n")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("it answered something else")
    return answer, rest


def _receive(
    connection: socket.socket,
    slot: Slot,
    size: int,
    rest: bytes,
    goes_on: Callable[[], bool],
    share: float,
) -> None:
    """Receive all bytes of a slot but its commit word.

    Raises:
        OSError, FetchError: not all came.
    """
    control = bytearray(CONTROL_BYTES)
    _fill(connection, memoryview(control), rest[:CONTROL_BYTES])
    slot.take_control(bytes(control))
    rest = rest[CONTROL_BYTES:]
    for start in range(CONTROL_BYTES, size, CHUNK_BYTES):
        if not goes_on():
            raise FetchError("it is not wanted any more")
        began_at = time.monotonic()
        with slot.bytes(start, min(start + CHUNK_BYTES, size)) as chunk:
            _fill(connection, chunk, rest)
        rest = b""
        if share < 1.0:
            time.sleep((time.monotonic() - began_at) * (1 / share - 1))


def _fill(connection: socket.socket, target: memoryview, rest: bytes) -> None:
    target[: len(rest)] = rest
    at = len(rest)
    while at < len(target):
        count = connection.recv_into(target[at:])
        if not count:
            raise FetchError("it closed the connection")
        at += count
