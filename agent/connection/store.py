"""A torch.distributed.Store that only the agents of one job can read and write.

https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.Store
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from agent.connection.handshake import connect
from agent.connection.store_server import SERVICE
from agent.connection.store_state import Operation, StoreAnswer, decode, encode, length_of

TIMEOUT_SECONDS = 60.0
"""Time limit of a call that waits for keys, unless `set_timeout` sets another."""
SILENCE_SECONDS = 10.0
"""Default of `PeerStore.silence_seconds`."""


class PeerStore(Store):
    """Client of one agent's `StoreServer`. All keys get `prefix`. Several threads may use it.

    All calls raise DistNetworkError once the connection has ended, and DistStoreError if keys are missing
    after the time limit.
    """

    def __init__(
        self, connection: socket.socket, prefix: str = "", lock: threading.Lock | None = None
    ) -> None:
        super().__init__()
        self._connection = connection
        self._prefix = prefix
        self._lock = lock or threading.Lock()
        """Lock of the connection."""
        self.silence_seconds = SILENCE_SECONDS
        """Time for the server's answer beyond the time limit of the call."""
        self._timeout = timedelta(seconds=TIMEOUT_SECONDS)

    @classmethod
    def connect(cls, host: str, port: int, key: bytes, seconds: float = math.inf) -> PeerStore:
        """Connect to the store of the agent that listens there.

        Args:
            seconds: time limit, of at most CONNECT_SECONDS.

        Raises:
            OSError: the agent cannot be reached, or is not of this job.
        """
        return cls(connect(host, port, key, SERVICE, seconds))

    def under(self, prefix: str) -> PeerStore:
        """Return a store for the keys with a further prefix, over the same connection."""
        return PeerStore(self._connection, self._prefix + prefix, self._lock)

    @property
    def timeout(self) -> timedelta:
        """The time limit of calls that wait for keys."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of calls that wait for keys."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Operation.SET, [self._key(key), _bytes(value)])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        pairs = zip(keys, values, strict=True)
        self._ask(Operation.SET, [part for key, value in pairs for part in (self._key(key), _bytes(value))])

    def get(self, key: str) -> bytes:
        """Return a value, once it is set."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values, once all are set."""
        names = [self._key(key) for key in keys]
        answer, values = self._ask(Operation.GET, names)
        while answer is StoreAnswer.MISSING:
            self.wait(keys)
            answer, values = self._ask(Operation.GET, names)
        return values

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, up to `timeout` or else the store's own time limit."""
        seconds = (self._timeout if timeout is None else timeout).total_seconds()
        milliseconds = b"%d" % max(int(seconds * 1000), 1)
        names = [self._key(key) for key in keys]
        answer, _ = self._ask(Operation.WAIT, [milliseconds, *names], seconds)
        if answer is not StoreAnswer.OK:
            raise DistStoreError(
                f"{keys[0]} and {len(keys) - 1} more keys are not all there after {seconds:g} s"
            )

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return self._ask(Operation.CHECK, [self._key(key) for key in keys])[0] is StoreAnswer.OK

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return the sum."""
        return int(self._ask(Operation.ADD, [self._key(key), b"%d" % amount])[1][0])

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _ask(
        self, operation: Operation, strings: Sequence[bytes], seconds: float = 0.0
    ) -> tuple[StoreAnswer, list[bytes]]:
        """Send a request that may take `seconds`, and return its answer."""
        with self._lock:
            try:
                self._connection.settimeout(seconds + self.silence_seconds)
                self._connection.sendall(encode(operation, strings))
                length = length_of(self._receive(4))
                kind, answer = decode(self._receive(length))
            except (OSError, ValueError) as error:
                self._connection.close()  # else a late answer would be taken for the next request's
                raise DistNetworkError(f"the store of a peer cannot be reached: {error}") from error
        if kind == StoreAnswer.INVALID:
            raise DistStoreError(f"the store refuses {operation.name}")
        return StoreAnswer(kind), answer

    def _receive(self, count: int) -> bytes:
        received = bytearray(count)
        at = 0
        while at < count:
            got = self._connection.recv_into(memoryview(received)[at:])
            if not got:
                raise ConnectionResetError("it has ended")
            at += got
        return bytes(received)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
