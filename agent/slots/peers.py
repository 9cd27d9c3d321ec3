"""Peers that hold replicas: agents that are not lost together with the one that they hold them for. Pure.

Each agent says what its Pod shares with others: switch, rack, node, as far as the nodes are labelled. The
agents are put in an order in which those that share something are next to each other, and the peer is the one
half of the way round. So it is elsewhere, unless more than half of all agents share that; then as few as
possible have a peer that shares it too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGITS = 6
"""Of a hash: two places that have the same are taken for one, which costs no more than a worse peer."""


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
