"""Decides which members of a world an agent watches, and which of them do not answer; without I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.facts.world import Member

REACH = 4
"""Largest number of members watched on either side: the nearest one, and while it is silent the next ones
too, since a whole rack may be lost."""
SILENT_SECONDS = 2.0
"""Time without an answer after which a member is silent."""
GONE_SECONDS = 5.0
"""The same if its host refuses the connection: its kubelet gets time to report the agent's end."""


Address = tuple[str, int]


def read_address(text: bytes) -> Address:
    """Parse a member's address: host and port, separated by a space.

    Raises:
        ValueError: it is malformed.
    """
    host, port = text.decode().split()
    ipaddress.ip_address(host)
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"{port} is no port")
    return host, int(port)


@dataclass(frozen=True)
class _Unanswered:
    """A member that does not answer."""

    since: float
    """Time of its last answer, or from which it is watched."""
    is_refused: bool = False
    """Whether its host refuses connections."""

    def is_silent(self, now: float) -> bool:
        return now - self.since >= (GONE_SECONDS if self.is_refused else SILENT_SECONDS)


class PeerWatch:
    """The neighbours of one agent.

    Args:
        members: members of the world, in the order of ranks.
        rank: rank of this agent.
    """

    def __init__(self, members: Sequence[Member], rank: int) -> None:
        self._members = members
        size = len(members)
        distances = range(1, min(REACH, size - 1) + 1)
        self._sides = [[(rank + step * d) % size for d in distances] for step in (1, -1)]
        self._watched: dict[int, _Unanswered | None] = {}
        """Watched ranks; None for those that answer."""

    @property
    def reach(self) -> list[int]:
        """All ranks that may be watched at some time."""
        return sorted({rank for side in self._sides for rank in side})

    def leave_out(self, ranks: Collection[int]) -> None:
        """Never watch these ranks, but the next ones in their place."""
        self._sides = [[rank for rank in side if rank not in ranks] for side in self._sides]

    def watched(self, now: float) -> list[int]:
        """Return the ranks to watch from now on."""
        wanted: dict[int, None] = {}
        for side in self._sides:
            wanted.update(dict.fromkeys(side if side and self._is_silent(side[0], now) else side[:1]))
        self._watched = {rank: self._watched.get(rank, _Unanswered(now)) for rank in wanted}
        return list(wanted)

    def answered(self, rank: int) -> None:
        """Note an answer."""
        if rank in self._watched:
            self._watched[rank] = None

    def failed(self, rank: int, now: float, *, is_refused: bool = False, silent_seconds: float = 0.0) -> None:
        """Note a failed attempt to connect, or a broken connection.

        Args:
            is_refused: its host refuses connections.
            silent_seconds: time without an answer until now.
        """
        if rank not in self._watched:
            return
        before = self._watched[rank]
        since = now - silent_seconds if before is None else before.since
        self._watched[rank] = _Unanswered(since, is_refused)

    def silent(self, now: float) -> tuple[Member, ...]:
        """Return the members that do not answer."""
        return tuple(self._members[rank] for rank in self._watched if self._is_silent(rank, now))

    def _is_silent(self, rank: int, now: float) -> bool:
        unanswered = self._watched.get(rank)
        return unanswered is not None and unanswered.is_silent(now)
