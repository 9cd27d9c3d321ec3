"""Replicas: in the background, a peer copies the newest checkpoint of our processes.

The agents form a ring in which those whose Pods share something (switch, rack, node) are neighbours. An
agent's peer is half of the ring away: it does not share that, unless more than half of all agents do. So the
peers follow from the world. An agent offers each committed checkpoint, and the peer fetches it at its own
pace; the next offer is the newest checkpoint at that time.

A process overwrites a slot two or three saves later. If a copy takes longer than two intervals, it fails, and
attempts become less frequent. Processes learn how long a copy takes, so that `every="auto"` chooses an
interval of that length at least.
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
"""Digits of a place's hash. Places with equal hashes count as one, which at worst costs a better peer."""
LOOK_SECONDS = 0.05
"""Pause between two looks at the commit words of our slots, which take some microseconds each."""
RETRY_SECONDS = 0.25
"""Pause after an offer that the peer did not take, for example since it was overwritten meanwhile."""
LONGEST_RETRY_SECONDS = 60.0
"""Limit of the pause, which doubles with each further offer that is overwritten."""
PATIENCE_SECONDS = 600.0
"""Time limit for the peer to fetch one checkpoint."""
WARN_SECONDS = 60.0
"""Time without a copy, after offers of more than one checkpoint, until a warning."""


def shortened(place: Sequence[str]) -> tuple[str, ...]:
    """Return a place as hashes, since names of nodes and labels may be long."""
    return tuple(hashlib.sha256(part.encode()).hexdigest()[:DIGITS] if part else "" for part in place)


def ring_of(places: Sequence[Sequence[str]]) -> tuple[int, ...] | None:
    """Return the agents in the order of their places; None if that is the order of their ranks.

    Args:
        places: place of each agent, the largest part first.
    """
    first: dict[tuple[str, ...], int] = {}
    keys = []
    for agent, place in enumerate(places):
        prefixes = (tuple(place[:length]) for length in range(1, len(place) + 1))
        keys.append([first.setdefault(prefix, agent) for prefix in prefixes])
    ring = sorted(range(len(places)), key=lambda agent: (keys[agent], agent))
    return None if ring == list(range(len(ring))) else tuple(ring)


def peers_of(ring: Sequence[int]) -> tuple[int, ...] | None:
    """Return each agent's peer, half of the ring away; None for a single agent."""
    count = len(ring)
    if count < 2:
        return None
    peers = [0] * count
    for at, agent in enumerate(ring):
        peers[agent] = ring[(at + count // 2) % count]
    return tuple(peers)


class Replication(threading.Thread):
    """Offers the newest checkpoint to the peer, if there is one.

    Args:
        own_marks: returns the newest mark of each local rank; None unless all have one.
        replicated: called with the step that the peer holds now.
        took: called with the seconds of the last copy. For a copy that failed, since its slot was overwritten
            meanwhile, this is the time of the attempt or of the copy before, whichever is longer.
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
        """Duration of the last copy."""
        self._changed = threading.Condition()
        self._peer: str | None = None
        self._turn = 0
        """Number that changes when a pause has to end early."""
        self._stopped = False

    def follow(self, peer: str | None) -> None:
        """Offer to the slot server at this address from now on; None for no peer."""
        with self._changed:
            self._peer = peer
            self._turn += 1
            self._changed.notify_all()

    def hasten(self) -> None:
        """Offer the newest checkpoint at once, since slots are not overwritten any more."""
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
        """Wait until there is a peer; return None after `stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._peer is not None)
            return None if self._stopped else self._peer

    def _wait(self, turn: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._turn != turn, seconds)

    def _offer(self, peer: str, marks: Sequence[Mark]) -> bool:
        """Offer all of them, and return whether the peer has fetched them."""
        address, began = self._own_address, time.monotonic()
        try:
            has_come = all(
                offer(peer, self._key, mark, address, PATIENCE_SECONDS, lambda: self._peer == peer)
                for mark in marks
            )
        except OSError as error:  # the duration of a copy remains unknown
            logger.debug("step %d has no replica: %s", marks[0].step, error)
            return False
        took = time.monotonic() - began
        self._seconds = took if has_come else max(took, self._seconds)
        self._took(self._seconds)
        return has_come


class ReplicaOffers:
    """Decides what is offered next, and when: without I/O, and without a clock."""

    def __init__(self) -> None:
        self._held: set[tuple[str, Mark]] = set()
        self._failures, self._turn = _Failures(), 0
        self._peer, self._marks, self._new = "", tuple[Mark, ...](), list[Mark]()

    @property
    def step(self) -> int:
        """Oldest step of the last offer."""
        return min(mark.step for mark in self._marks)

    def begin(self, peer: str, turn: int, marks: Sequence[Mark]) -> Sequence[Mark]:
        """Return the marks to offer to a peer.

        Args:
            turn: a number; a change of it ends a pause, and resets the count of failures.
            marks: newest mark of each local rank.
        """
        if turn != self._turn:
            self._failures, self._turn = _Failures(), turn
        self._peer, self._marks = peer, tuple(marks)
        self._new = [mark for mark in marks if (peer, mark) not in self._held]
        return self._new

    def end(self, has_come: bool, began: float, now: float) -> float:
        """Note the result of the offer, and return the seconds to wait, unless the turn changes."""
        if not has_come:
            return self._failures.add(self._peer, self._new[0].step, now, now - began)
        self._failures = _Failures()
        self._held = {(self._peer, mark) for mark in self._marks}
        return 0.0


class _Failures:
    """Failed offers in a row."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        """Step of the first, and the time of its failure."""
        self._in_vain = 0
        """Number of them that were fetched, at least in part."""
        self._has_warned = False

    def add(self, peer: str, step: int, now: float, took: float) -> float:
        """Note one more, and warn once failures last for WARN_SECONDS.

        Args:
            now: seconds of a monotonic clock.
            took: duration of this offer, in seconds.

        Returns:
            Seconds to wait. An offer that the peer refuses at once costs nothing: its slots are not ready
            yet. A fetch in vain costs half of the network.
        """
        first_step, since = self._first = self._first or (step, now)
        if not self._has_warned and step != first_step and now - since >= WARN_SECONDS:
            self._has_warned = True
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
