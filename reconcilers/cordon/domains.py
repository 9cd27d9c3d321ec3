"""Accusations of most nodes of an NVLink domain at once, which are about its switch, and count once. Pure.

The domain is that of `elasticPolicy.domain: auto`, since a cordon concerns the cluster, and not one job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

TOGETHER = timedelta(minutes=15)
"""Longest time between two findings of one fault."""
LEAST_NODES, MOST_NODES = 2, 144
"""Limits of nodes behind one switch. A label that more nodes share is no such domain."""


@dataclass(frozen=True)
class Switch:
    """The switch of a domain, most of whose nodes are accused."""

    domain: str
    accused: int
    nodes: int

    def __str__(self) -> str:
        which = f"{self.accused} of the {self.nodes} nodes of domain {self.domain} are accused together"
        return f"{which}, so its switch is to blame, and not each of them"


def is_switch(accused: int, nodes: int) -> bool:
    """Whether so many accused nodes of a domain point to its switch."""
    return accused >= LEAST_NODES and 2 * accused > nodes and nodes <= MOST_NODES


def switch_of(domain: str, accused: int, nodes: int) -> Switch | None:
    """Return the switch to which the accusation of a node points; None if it points to the node.

    Args:
        accused: number of nodes of the domain accused together, this one included.
        nodes: number of nodes of the domain.
    """
    return Switch(domain, accused, nodes) if domain and is_switch(accused, nodes) else None


def has_room(
    limit: int, switch: Switch | None, alone: int, domains: Sequence[str], nodes_of: Callable[[str], int]
) -> bool:
    """Whether the limit leaves room for the cordon of a node, or of all nodes behind a switch.

    Nodes behind one switch count once. But once one switch has taken more room than that, another one needs
    room for all its nodes.

    Args:
        switch: the switch to which the accusation of the node points.
        alone: number of other cordoned nodes that are in no domain.
        domains: domain of each other cordoned node that is in one.
        nodes_of: returns the number of nodes of a domain.
    """
    if alone + len(domains) < limit:
        return True
    others = [domain for domain in domains if switch is None or domain != switch.domain]
    taken = room_taken(others, nodes_of)
    if switch is not None and taken < len(others) and len(others) + switch.nodes > limit:
        return False
    return alone + taken < limit


def room_taken(domains: Iterable[str], nodes_of: Callable[[str], int]) -> int:
    """Return the part of the limit that cordoned nodes use up: those behind one switch count once.

    Args:
        domains: domain of each cordoned node.
        nodes_of: returns the number of nodes of a domain.
    """
    counts = Counter(domains)
    return sum(1 if is_switch(n, nodes_of(domain)) else n for domain, n in counts.items())
