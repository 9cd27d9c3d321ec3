"""Keys and values through which the agents of a job meet: as torch.distributed.TCPStore, for peers only.

A request is a frame: its length as four bytes, an operation as one byte, and then byte strings, each after
its length as four bytes. The answer is a frame of the same form, whose first byte is an `Answer`.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from agent.connection.listener import Inbox, Listener

logger = logging.getLogger(__name__)

SERVICE = "store"
MAX_FRAME_BYTES = 64 << 20
"""Length of the longest frame. A world of 10,000 agents has some megabytes in one."""
RECEIVE_BYTES = 64 << 10
LONGEST_WAIT_SECONDS = 86_400.0
"""A longer wait is cut: epoll takes no more than 24 days."""
KEPT_ROUNDS = 2
"""Rounds whose keys are kept: the newest, and the one whose copies a replacement may look for."""

MAX_DIGITS = 18
"""Digits of the number of a version."""

_LENGTH = struct.Struct("!I")
_VERSIONS = b"replicas/"


class Operation(IntEnum):
    """What a request asks for, with its strings."""

    SET = 1
    """key, value, key, value, …"""
    GET = 2
    """keys; the values of keys that are all there, else MISSING."""
    WAIT = 3
    """milliseconds, keys; once all are there, or the time is over."""
    CHECK = 4
    """keys; whether all are there."""
    ADD = 5
    """key, number; the sum."""


class Answer(IntEnum):
    """The first byte of an answer."""

    OK = 1
    MISSING = 2
    """A key is not there, or was not there in time."""
    INVALID = 3
    """The request makes no sense."""


class BadFrameError(ValueError):
    """A frame that makes no sense."""


def encode(kind: int, strings: Sequence[bytes]) -> bytes:
    parts = [bytes((kind,))]
    for string in strings:
        parts += (_LENGTH.pack(len(string)), string)
    payload = b"".join(parts)
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> tuple[int, list[bytes]]:
    """Decode a frame without its length; raise BadFrameError where it is none."""
    strings, at = [], 1
    while at < len(payload):
        start = at + _LENGTH.size
        if start > len(payload):
            raise BadFrameError
        at = start + _LENGTH.unpack_from(payload, at)[0]
        if at > len(payload):
            raise BadFrameError
        strings.append(payload[start:at])
    if not payload:
        raise BadFrameError
    return payload[0], strings


def length_of(prefix: bytes) -> int:
    """Return the length of the frame that begins with these four bytes.

    Raises:
        BadFrameError: it is too long.
    """
    length: int = _LENGTH.unpack_from(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise BadFrameError
    return length


class Values:
    """The keys and values. Pure but for its lock."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._rounds: list[int] = []
        self._lock = threading.Lock()

    def open_round(self, round_: int) -> None:
        """Make room for the keys of a round, under `round_prefix`: those of old rounds are dropped."""
        with self._lock:
            if round_ not in self._rounds:
                self._rounds.append(round_)
            while len(self._rounds) > KEPT_ROUNDS:
                prefix = round_prefix(self._rounds.pop(0)).encode()
                for key in [key for key in self._values if key.startswith(prefix)]:
                    del self._values[key]

    def open_version(self, version: int) -> None:
        """Drop the keys of versions of the replica groups but for this one, the one before, and newer ones.

        Others may have seen versions that this agent has not, and left keys here.
        """
        with self._lock:
            for key in [key for key in self._values if key.startswith(_VERSIONS)]:
                if _version_of(key) <= version - KEPT_ROUNDS:
                    del self._values[key]

    def has(self, key: bytes) -> bool:
        with self._lock:
            return key in self._values

    def apply(self, operation: Operation, strings: Sequence[bytes]) -> tuple[Answer, list[bytes], bool]:
        """Carry out a request other than WAIT.

        Returns:
            The answer, and whether keys have been added.

        Raises:
            ValueError: the request makes no sense.
        """
        values = self._values
        with self._lock:
            if operation is Operation.SET:
                if len(strings) % 2:
                    raise BadFrameError
                values.update(zip(strings[::2], strings[1::2], strict=True))
                return Answer.OK, [], True
            if operation is Operation.GET:
                found = [values[key] for key in strings if key in values]
                return (
                    (Answer.OK, found, False) if len(found) == len(strings) else (Answer.MISSING, [], False)
                )
            if operation is Operation.CHECK:
                return (Answer.OK if all(key in values for key in strings) else Answer.MISSING), [], False
            key, number = strings
            values[key] = b"%d" % (int(values.get(key, b"0")) + int(number))
            return Answer.OK, [values[key]], True


def round_prefix(round_: int) -> str:
    """Return the prefix of a round's keys."""
    return f"round/{round_}/"


def version_prefix(version: int) -> str:
    """Return the prefix of the keys of a version of the replica groups."""
    return f"{_VERSIONS.decode()}{version}/"


def _version_of(key: bytes) -> int:
    """Return the version that a key is of; -KEPT_ROUNDS for a key of none, as any peer may leave one."""
    number = key.split(b"/", 2)[1]
    return int(number) if number.isdigit() and len(number) <= MAX_DIGITS else -KEPT_ROUNDS


@dataclass(eq=False)
class _Client:
    """A connection."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    awaited: list[bytes] = field(default_factory=list)
    """The keys that its request waits for."""
    found: int = 0
    """How many of them were there, from the first on: none is looked for twice."""
    turn: int = 0
    """The number of its newest wait."""


class StoreServer:
    """Serves `values` to the peers that a listener hands over, until `close`."""

    def __init__(self, listener: Listener) -> None:
        self.values = Values()
        self._clients: dict[int, _Client] = {}
        self._waiting: dict[bytes, set[_Client]] = {}
        """Clients by one of the keys that each waits for."""
        self._deadlines: list[tuple[float, int, _Client]] = []
        self._turns = itertools.count(1)
        self._inbox = Inbox()
        self._closed = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._inbox, select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="dlr-store", daemon=True)
        self._thread.start()
        self._listener = listener
        listener.offer(SERVICE, self._inbox.put)

    def close(self) -> None:
        """Close all connections, and end the thread. It may be repeated."""
        if not self._closed:
            self._closed = True
            self._listener.withdraw(SERVICE)
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()
            self._inbox.close()
            self._epoll.close()
            os.close(self._wake_fd)

    def _run(self) -> None:
        while not self._closed:
            for fd, _ in self._epoll.poll(self._wait_seconds()):
                if fd == self._inbox.fileno():
                    self._take_in()
                elif (client := self._clients.get(fd)) is not None:
                    self._attend(client)
            self._expire()
        for client in list(self._clients.values()):
            self._drop(client)

    def _take_in(self) -> None:
        for connection in self._inbox.take():
            connection.setblocking(False)
            try:
                self._epoll.register(connection, select.EPOLLIN)
            except OSError as error:  # no more may be watched (fs.epoll.max_user_watches)
                logger.warning("a connection to the store was given up: %s", error)
                connection.close()
                continue
            self._clients[connection.fileno()] = _Client(connection)

    def _attend(self, client: _Client) -> None:
        """Receive what has come and answer it; one client's trouble is no other's."""
        try:
            if client.unsent:
                self._send(client, b"")
            part = client.connection.recv(RECEIVE_BYTES)
            if not part:
                self._drop(client)
                return
            client.received += part
            for payload in _frames(client.received):
                self._answer(client, payload)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            logger.debug("a connection to the store was dropped: %s", error)
            self._drop(client)
        except Exception:
            logger.exception("a connection to the store was dropped")
            self._drop(client)

    def _answer(self, client: _Client, payload: bytes) -> None:
        kind, strings = decode(payload)
        operation = Operation(kind)
        if operation is Operation.WAIT:
            self._wait(client, int(strings[0]), strings[1:])
            return
        try:
            answer, result, has_added = self.values.apply(operation, strings)
        except ValueError:
            answer, result, has_added = Answer.INVALID, [], False
        self._send(client, encode(answer, result))
        if has_added:
            self._wake(strings[::2] if operation is Operation.SET else strings[:1])

    def _wait(self, client: _Client, milliseconds: int, keys: list[bytes]) -> None:
        client.awaited, client.found = keys, 0
        if not self._has_to_wait(client):
            client.awaited = []
            self._send(client, encode(Answer.OK, []))
            return
        client.turn = next(self._turns)
        seconds = min(milliseconds / 1000, LONGEST_WAIT_SECONDS)
        heapq.heappush(self._deadlines, (time.monotonic() + seconds, client.turn, client))

    def _wake(self, keys: Sequence[bytes]) -> None:
        """Answer those who waited for one of these keys, and for no other one."""
        for key in keys:
            for client in self._waiting.pop(key, ()):
                if not self._has_to_wait(client):
                    self._end_wait(client, Answer.OK)

    def _has_to_wait(self, client: _Client) -> bool:
        """Go on through the keys that a client waits for, to the first that is missing; False if none is."""
        while client.found < len(client.awaited):
            key = client.awaited[client.found]
            if not self.values.has(key):
                self._waiting.setdefault(key, set()).add(client)
                return True
            client.found += 1
        return False

    def _end_wait(self, client: _Client, answer: Answer) -> None:
        client.awaited, client.turn = [], 0
        try:
            self._send(client, encode(answer, []))
        except OSError:
            self._drop(client)

    def _expire(self) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, turn, client = heapq.heappop(self._deadlines)
            if client.turn == turn:
                self._forget(client)
                self._end_wait(client, Answer.MISSING)

    def _wait_seconds(self) -> float | None:
        return max(self._deadlines[0][0] - time.monotonic(), 0.0) if self._deadlines else None

    def _send(self, client: _Client, data: bytes) -> None:
        """Send, and what does not fit once there is room."""
        had_unsent = bool(client.unsent)
        client.unsent += data
        try:
            sent = client.connection.send(client.unsent)
        except BlockingIOError:
            sent = 0
        del client.unsent[:sent]
        if bool(client.unsent) != had_unsent:
            events = select.EPOLLIN | select.EPOLLOUT if client.unsent else select.EPOLLIN
            self._epoll.modify(client.connection, events)

    def _forget(self, client: _Client) -> None:
        """Take it from those who wait."""
        for key in client.awaited:
            if (waiting := self._waiting.get(key)) is not None:
                waiting.discard(client)
                if not waiting:
                    del self._waiting[key]

    def _drop(self, client: _Client) -> None:
        self._forget(client)
        client.turn = 0
        if self._clients.pop(client.connection.fileno(), None) is not None:
            self._epoll.unregister(client.connection)
            client.connection.close()


def _frames(received: bytearray) -> Iterator[bytes]:
    """Take the complete frames out of what was received."""
    at = 0
    try:
        while len(received) - at >= _LENGTH.size:
            start = at + _LENGTH.size
            end = start + length_of(bytes(received[at:start]))
            if end > len(received):
                return
            yield bytes(received[start:end])
            at = end
    finally:
        del received[:at]
