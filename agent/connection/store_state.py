"""Keys and values through which the agents of a job meet: like torch.distributed.TCPStore, for peers only.

A request is a frame: its length in four bytes, an operation in one byte, and byte strings, each preceded by
its length in four bytes. The answer is a frame of the same form, with a `StoreAnswer` as its first byte.
"""

from __future__ import annotations

import heapq
import itertools
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

MAX_FRAME_BYTES = 64 << 20
"""Length of the longest frame. A world of 10,000 agents has some megabytes in one."""
LONGEST_WAIT_SECONDS = 86_400.0
"""Time limit of a wait; epoll allows no more than 24 days."""
KEPT_ROUNDS = 2
"""Number of rounds whose keys are kept: the newest, and the one whose copies a replacement may look for."""

MAX_DIGITS = 18
"""Digits of the number of a version."""

_LENGTH = struct.Struct("!I")
_VERSIONS = b"replicas/"


class Operation(IntEnum):
    """Operation of a request, with its strings and its answer."""

    SET = 1
    """key, value, key, value, …"""
    GET = 2
    """keys; the values if all keys are set, else MISSING."""
    WAIT = 3
    """milliseconds, keys; OK once all keys are set, MISSING after the time."""
    CHECK = 4
    """keys; OK if all keys are set, else MISSING."""
    ADD = 5
    """key, number; the sum."""


class StoreAnswer(IntEnum):
    """First byte of an answer."""

    OK = 1
    MISSING = 2
    """A key is not set, or was not set in time."""
    INVALID = 3
    """The request is malformed."""


class BadFrameError(ValueError):
    """A malformed frame."""


def encode(kind: int, strings: Sequence[bytes]) -> bytes:
    parts = [bytes((kind,))]
    for string in strings:
        parts += (_LENGTH.pack(len(string)), string)
    payload = b"".join(parts)
    return _LENGTH.pack(len(payload)) + payload


def decode(payload: bytes) -> tuple[int, list[bytes]]:
    """Decode a frame without its length; raise BadFrameError if it is malformed."""
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
        """Open a round, whose keys are under `round_prefix`, and drop the keys of old rounds."""
        with self._lock:
            if round_ not in self._rounds:
                self._rounds.append(round_)
            while len(self._rounds) > KEPT_ROUNDS:
                prefix = round_prefix(self._rounds.pop(0)).encode()
                for key in [key for key in self._values if key.startswith(prefix)]:
                    del self._values[key]

    def open_version(self, version: int) -> None:
        """Drop the keys of the replica groups' versions before the preceding one.

        Newer ones stay: other agents may have seen versions that this one has not, and set keys here.
        """
        with self._lock:
            for key in [key for key in self._values if key.startswith(_VERSIONS)]:
                if _version_of(key) <= version - KEPT_ROUNDS:
                    del self._values[key]

    def has(self, key: bytes) -> bool:
        with self._lock:
            return key in self._values

    def apply(self, operation: Operation, strings: Sequence[bytes]) -> tuple[StoreAnswer, list[bytes], bool]:
        """Carry out a request other than WAIT.

        Returns:
            The answer, and whether keys have been added.

        Raises:
            ValueError: the request is malformed.
        """
        values = self._values
        with self._lock:
            if operation is Operation.SET:
                if len(strings) % 2:
                    raise BadFrameError
                values.update(zip(strings[::2], strings[1::2], strict=True))
                return StoreAnswer.OK, [], True
            if operation in (Operation.GET, Operation.CHECK):
                if not all(key in values for key in strings):
                    return StoreAnswer.MISSING, [], False
                found = [values[key] for key in strings] if operation is Operation.GET else []
                return StoreAnswer.OK, found, False
            key, number = strings
            values[key] = b"%d" % (int(values.get(key, b"0")) + int(number))
            return StoreAnswer.OK, [values[key]], True


def round_prefix(round_: int) -> str:
    """Return the prefix of a round's keys."""
    return f"round/{round_}/"


def version_prefix(version: int) -> str:
    """Return the prefix of the keys of a version of the replica groups."""
    return f"{_VERSIONS.decode()}{version}/"


def _version_of(key: bytes) -> int:
    """Return the version of a key; -KEPT_ROUNDS for a key without one, as any peer may set it."""
    number = key.split(b"/", 2)[1]
    return int(number) if number.isdigit() and len(number) <= MAX_DIGITS else -KEPT_ROUNDS


@dataclass(eq=False)
class _Client:
    """A connection."""

    number: int
    received: bytearray = field(default_factory=bytearray)
    awaited: list[bytes] = field(default_factory=list)
    """Keys that its request waits for."""
    found: int = 0
    """Number of the first awaited keys that were found set, so that none is looked up twice."""
    turn: int = 0
    """Number of its newest wait; 0 if it does not wait."""


class StoreState:
    """Answers the requests of all clients, which are identified by numbers."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.outgoing: list[tuple[int, bytes]] = []
        """Client and data to send; the caller takes them out."""
        self._clients: dict[int, _Client] = {}
        self._waiting: dict[bytes, set[_Client]] = {}
        """Waiting clients by key; each is under one missing key of its request."""
        self._deadlines: list[tuple[float, int, _Client]] = []
        self._turns = itertools.count(1)

    def add(self, number: int) -> None:
        """Add a client."""
        self._clients[number] = _Client(number)

    def drop(self, number: int) -> None:
        """Remove a client."""
        if (client := self._clients.pop(number, None)) is not None:
            self._forget(client)
            client.turn = 0

    @property
    def deadline(self) -> float | None:
        """Time at which the next wait may expire; None without waits."""
        return self._deadlines[0][0] if self._deadlines else None

    def receive(self, number: int, data: bytes, now: float) -> None:
        """Process data of a client, in pieces of any length.

        Raises:
            ValueError: the data is malformed; the client has to be dropped.
        """
        client = self._clients[number]
        client.received += data
        for payload in _frames(client.received):
            self._answer(client, payload, now)

    def expire(self, now: float) -> None:
        """Answer the clients whose waits have expired."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, turn, client = heapq.heappop(self._deadlines)
            if client.turn == turn:
                self._forget(client)
                self._end_wait(client, StoreAnswer.MISSING)

    def _answer(self, client: _Client, payload: bytes, now: float) -> None:
        kind, strings = decode(payload)
        operation = Operation(kind)
        if operation is Operation.WAIT:
            if not strings:
                raise BadFrameError
            self._wait(client, int(strings[0]), strings[1:], now)
            return
        try:
            answer, result, has_added = self.values.apply(operation, strings)
        except ValueError:
            answer, result, has_added = StoreAnswer.INVALID, [], False
        self.outgoing.append((client.number, encode(answer, result)))
        if has_added:
            self._wake(strings[::2] if operation is Operation.SET else strings[:1])

    def _wait(self, client: _Client, milliseconds: int, keys: list[bytes], now: float) -> None:
        self._forget(client)
        client.awaited, client.found = keys, 0
        if not self._has_to_wait(client):
            self._end_wait(client, StoreAnswer.OK)
            return
        client.turn = next(self._turns)
        seconds = min(milliseconds / 1000, LONGEST_WAIT_SECONDS)
        heapq.heappush(self._deadlines, (now + seconds, client.turn, client))

    def _wake(self, keys: Sequence[bytes]) -> None:
        """Answer the clients whose last missing key is among these."""
        for key in keys:
            for client in self._waiting.pop(key, ()):
                if not self._has_to_wait(client):
                    self._end_wait(client, StoreAnswer.OK)

    def _has_to_wait(self, client: _Client) -> bool:
        """Register a client under its first missing key; return False if none is missing."""
        while client.found < len(client.awaited):
            key = client.awaited[client.found]
            if not self.values.has(key):
                self._waiting.setdefault(key, set()).add(client)
                return True
            client.found += 1
        return False

    def _end_wait(self, client: _Client, answer: StoreAnswer) -> None:
        client.awaited, client.turn = [], 0
        self.outgoing.append((client.number, encode(answer, [])))

    def _forget(self, client: _Client) -> None:
        """Remove a client from the waiting ones."""
        for key in client.awaited:
            if (waiting := self._waiting.get(key)) is not None:
                waiting.discard(client)
                if not waiting:
                    del self._waiting[key]


def _frames(received: bytearray) -> Iterator[bytes]:
    """Remove the complete frames from received data, and yield them."""
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
