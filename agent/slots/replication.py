"""Replicas: a peer holds what our processes keep, in the background, and only the newest.

The agents are put in an order in which those whose Pods share something (switch, rack, node) are next to each
other, and the peer is the one half of the way round: elsewhere, unless more than half of all agents share
that. The peer follows from the world. It is offered what was committed, and fetches it at its own pace; of
newer ones that come meanwhile the newest is offered next.

A process overwrites a slot with its next but one or two. Where a copy takes longer than two intervals, there
are no replicas, and they are tried for less and less often. Processes are told what one takes, so that
`every="auto"` chooses an interval that is as long.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

from agent.slots.format import Mark
from agent.slots.wire import offer

logger = logging.getLogger(__name__)

DIGITS = 6
"""Digits of a place's hash. Two places with the same count as one, which costs no more than a worse peer."""
LOOK_SECONDS = 0.05
"""Between two looks at the commit words of our slots: some microseconds each."""
RETRY_SECONDS = 0.25
"""After an offer that the peer did not take: what was offered may have been overwritten meanwhile."""
LONGEST_RETRY_SECONDS = 60.0
"""Where one offer after the other is overwritten, a pause is twice as long as the one before, up to this."""
PATIENCE_SECONDS = 600.0
"""For the peer to fetch one."""
WARN_SECONDS = 60.0
"""Without a copy, of more than one checkpoint that was offered."""


def shortened(place: Sequence[str]) -> tuple[str, ...]:
    """A place as agents tell it: names of nodes and labels may be long."""
    return tuple(hashlib.sha256(part.encode()).hexdigest()[:DIGITS] if part else "" for part in place)


def ring_of(places: Sequence[Sequence[str]]) -> tuple[int, ...] | None:
    """The order of the agents, by the place of each, the largest part first; None if it is their own."""
    first: dict[tuple[str, ...], int] = {}
    keys = []
    for agent, place in enumerate(places):
        prefixes = (tuple(place[:length]) for length in range(1, len(place) + 1))
        keys.append([first.setdefault(prefix, agent) for prefix in prefixes])
    ring = sorted(range(len(places)), key=lambda agent: (keys[agent], agent))
    return None if ring == list(range(len(ring))) else tuple(ring)


def peers_of(ring: Sequence[int]) -> tuple[int, ...] | None:
    """Return each agent's peer, half of the way round the ring; None for one agent alone."""
    count = len(ring)
    if count < 2:
        return None
    peers = [0] * count
    for at, agent in enumerate(ring):
        peers[agent] = ring[(at + count // 2) % count]
    return tuple(peers)


class Replication(threading.Thread):
    """Offers what is newest, while there is a peer.

    Args:
        own_marks: the newest checkpoint of each local rank, if all have one.
        replicated: called with the step that the peer holds now.
        took: called with the seconds of the last copy. One that did not come about, since what was offered
            was overwritten meanwhile, takes as long as it was tried for, and as the one before, at least.
    """

    def __init__(
        self,
        own_marks: Callable[[], Sequence[Mark] | None],
        own_address: str,
        key: bytes,
        replicated: Callable[[int], None],
        took: Callable[[float], None],
    ) -> None:
        super().__init__(name="dlr-replicate", daemon=True)
        self._own_marks = own_marks
        self._own_address = own_address
        self._key = key
        self._replicated = replicated
        self._took = took
        self._seconds = 0.0
        """Of the last copy."""
        self._changed = threading.Condition()
        self._peer: str | None = None
        self._turn = 0
        """Changes where a pause is over early."""
        self._stopped = False

    def follow(self, peer: str | None) -> None:
        """Have the agent of this slot server hold them from now on; None: nobody, for the time being."""
        with self._changed:
            self._peer = peer
            self._turn += 1
            self._changed.notify_all()

    def hasten(self) -> None:
        """Offer what is newest at once: nothing is written over any more."""
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        course = ReplicaOffers()
        while (peer := self._next_peer()) is not None:
            turn = self._turn
            new = course.begin(peer, turn, self._own_marks() or ())
            if not new:
                self._wait(turn, LOOK_SECONDS)
                continue
            began = time.monotonic()
            has_come = self._offer(peer, new)
            pause_seconds = course.end(has_come, began, time.monotonic())
            if has_come:
                self._replicated(course.step)
            else:
                self._wait(turn, pause_seconds)

    def _next_peer(self) -> str | None:
        """Wait until there is a peer; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._peer is not None)
            return None if self._stopped else self._peer

    def _wait(self, turn: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._turn != turn, seconds)

    def _offer(self, peer: str, marks: Sequence[Mark]) -> bool:
        """Have the peer fetch all of them, and tell whether it has."""
        address, began = self._own_address, time.monotonic()
        try:
            has_come = all(
                offer(peer, self._key, mark, address, PATIENCE_SECONDS, lambda: self._peer == peer)
                for mark in marks
            )
        except OSError as error:  # which says nothing of how long a copy takes
            logger.debug("step %d has no replica: %s", marks[0].step, error)
            return False
        took = time.monotonic() - began
        self._seconds = took if has_come else max(took, self._seconds)
        self._took(self._seconds)
        return has_come


class ReplicaOffers:
    """What is offered next, and when: without I/O, and without a clock."""

    def __init__(self) -> None:
        self._held: set[tuple[str, Mark]] = set()
        self._failures, self._turn = _Failures(), 0
        self._peer, self._marks, self._new = "", tuple[Mark, ...](), list[Mark]()

    @property
    def step(self) -> int:
        """The oldest step of what was offered last."""
        return min(mark.step for mark in self._marks)

    def begin(self, peer: str, turn: int, marks: Sequence[Mark]) -> Sequence[Mark]:
        """Return what to offer to a peer, of the newest checkpoint of each local rank.

        Args:
            turn: another one than before ends a pause, and the account of failures.
        """
        if turn != self._turn:
            self._failures, self._turn = _Failures(), turn
        self._peer, self._marks = peer, tuple(marks)
        self._new = [mark for mark in marks if (peer, mark) not in self._held]
        return self._new

    def end(self, has_come: bool, began: float, now: float) -> float:
        """Note what became of the offer, and return the seconds to wait, unless the turn changes."""
        if not has_come:
            return self._failures.add(self._peer, self._new[0].step, now, now - began)
        self._failures = _Failures()
        self._held = {(self._peer, mark) for mark in self._marks}
        return 0.0


class _Failures:
    """The offers in a row of which no copy came to be."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        """The step of the first, and when it failed."""
        self._in_vain = 0
        """How many of them were fetched, at least in part."""
        self._is_told = False

    def add(self, peer: str, step: int, now: float, took: float) -> float:
        """Note one more, and warn once they have lasted for long.

        Args:
            now: of a monotonic clock, in seconds.
            took: the seconds of this offer.

        Returns:
            How many seconds to wait. What the peer refuses at once costs nothing: it has no room yet, or is
            about to make some. What it fetches in vain costs half of the network.
        """
        first_step, since = self._first = self._first or (step, now)
        if not self._is_told and step != first_step and now - since >= WARN_SECONDS:
            self._is_told = True
            logger.warning(
                "no checkpoint from step %d on has come to the memory of %s, for %.0f s: a copy that takes "
                "longer than two saves is written over meanwhile; a larger `every` leaves more time for it",
                first_step,
                peer,
                now - since,
            )
        if took <= RETRY_SECONDS:
            return RETRY_SECONDS
        self._in_vain += 1
        return min(took * 2.0 ** min(self._in_vain, 30), max(LONGEST_RETRY_SECONDS, took))
