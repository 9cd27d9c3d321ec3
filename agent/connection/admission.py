"""Decides which connections to an agent have yet to prove the job's key, and which are closed; without I/O.

Where there are too many, the oldest one of the address that has the most is closed, so that a stranger who
keeps connections open, or opens them ever again, holds up nobody but itself: a peer needs a round trip.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.connection.handshake import HANDSHAKE_SECONDS, RESPONSE_BYTES, Challenge, RefusedError

MAX_UNPROVEN = 256
"""Connections that may be without a proof at a time; with one more, one is closed."""


@dataclass
class _Unproven:
    """A connection that has yet to prove the key."""

    source: str
    """The address that it comes from."""
    challenge: Challenge
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Admission:
    """The server's side of all handshakes at a time.

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
        """Their numbers, the oldest first, by the address that they come from."""

    def __contains__(self, number: int) -> bool:
        return number in self._unproven

    def __len__(self) -> int:
        return len(self._unproven)

    @property
    def deadline(self) -> float | None:
        """The time at which the first of them expires."""
        return next(iter(self._unproven.values())).deadline if self._unproven else None

    def accept(self, number: int, source: str, now: float) -> tuple[bytes, int | None]:
        """Admit a connection.

        Args:
            number: its descriptor.
            source: the address that it comes from.

        Returns:
            What to send to it, and the connection to close in its place, which is forgotten.
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
        """Return the number of bytes to read from it, and no more: what follows is the service's."""
        return RESPONSE_BYTES - len(self._unproven[number].received)

    def receive(self, number: int, data: bytes) -> tuple[str, bytes] | None:
        """Take in what was read from a connection, empty at its end.

        Returns:
            The service that it asks for, and what to send to it; it is forgotten. None: more has to come.

        Raises:
            RefusedError: the connection is to be closed, and forgotten.
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
        """Forget those whose time is over, and return them.

        Args:
            now: time before the last look at what has come. A response that is there by the deadline counts,
                however late it is read.
        """
        expired = []
        while self._unproven and next(iter(self._unproven.values())).deadline <= now:
            expired.append(next(iter(self._unproven)))
            self.forget(expired[-1])
        return expired

    def forget(self, number: int) -> None:
        """Forget a connection, if it is one of them."""
        if (unproven := self._unproven.pop(number, None)) is not None:
            of_source = self._sources[unproven.source]
            del of_source[number]
            if not of_source:
                del self._sources[unproven.source]
