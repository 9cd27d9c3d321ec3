"""Limits the connections to an agent that have not proved the job's key yet; without I/O.

If there are too many, the oldest one of the address with the most is closed, so that a stranger who opens
many connections, or keeps them open, only delays itself: a peer needs a single round trip.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.connection.handshake import HANDSHAKE_SECONDS, RESPONSE_BYTES, Challenge, RefusedError

MAX_UNPROVEN = 256
"""Largest number of connections without a proof."""


@dataclass
class _Unproven:
    """A connection that has not proved the key yet."""

    source: str
    """Address of the peer."""
    challenge: Challenge
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Admission:
    """The server's side of all current handshakes.

    Args:
        address: the address and port that the server listens on, from `packed_address`.
        draw: makes nonces.
    """

    def __init__(
        self, key: bytes, address: bytes, draw: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._key = key
        self._address = address
        self._draw = draw
        self._unproven: OrderedDict[int, _Unproven] = OrderedDict()
        """Connections by number, the oldest first."""
        self._sources: dict[str, OrderedDict[int, None]] = {}
        """Numbers of the connections, the oldest first, by address of the peer."""

    def __contains__(self, number: int) -> bool:
        return number in self._unproven

    def __len__(self) -> int:
        return len(self._unproven)

    @property
    def deadline(self) -> float | None:
        """Time at which the first connection expires; None without connections."""
        return next(iter(self._unproven.values())).deadline if self._unproven else None

    def accept(self, number: int, source: str, now: float) -> tuple[bytes, int | None]:
        """Admit a connection.

        Args:
            number: its descriptor.
            source: address of the peer.

        Returns:
            The nonce to send to it, and the connection to close in its place, which is forgotten.
        """
        challenge = Challenge.draw(self._key, self._address, self._draw)
        self._unproven[number] = _Unproven(source, challenge, now + HANDSHAKE_SECONDS)
        self._sources.setdefault(source, OrderedDict())[number] = None
        if len(self._unproven) <= MAX_UNPROVEN:
            return challenge.nonce, None
        most = max(self._sources.values(), key=len)
        excess = next(iter(most))
        self.forget(excess)
        return challenge.nonce, excess

    def wanted(self, number: int) -> int:
        """Return the most bytes to read from a connection: further ones are the service's."""
        return RESPONSE_BYTES - len(self._unproven[number].received)

    def receive(self, number: int, data: bytes) -> tuple[str, bytes] | None:
        """Process data from a connection, empty at its end.

        Returns:
            The requested service, and the proof to send; the connection is forgotten. None: more data is
            needed.

        Raises:
            RefusedError: the connection has to be closed; it is forgotten.
        """
        unproven = self._unproven[number]
        unproven.received += data
        if data and self.wanted(number):
            return None
        self.forget(number)
        accepted = unproven.challenge.accept(bytes(unproven.received)) if data else None
        if accepted is None:
            raise RefusedError("it has not proved the key")
        return accepted

    def expire(self, now: float) -> list[int]:
        """Forget the connections whose time is over, and return them.

        Args:
            now: time before the last poll. A response that has arrived by the deadline counts, however late
            it
                is read.
        """
        expired = []
        while self._unproven and next(iter(self._unproven.values())).deadline <= now:
            expired.append(next(iter(self._unproven)))
            self.forget(expired[-1])
        return expired

    def forget(self, number: int) -> None:
        """Forget a connection, if it is there."""
        if (unproven := self._unproven.pop(number, None)) is not None:
            of_source = self._sources[unproven.source]
            del of_source[number]
            if not of_source:
                del self._sources[unproven.source]
