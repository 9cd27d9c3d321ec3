"""Accusations of most nodes of an NVLink domain at once: they are the switch's, and count once. Pure.

The domain of a node is what `elasticPolicy.domain: auto` reads: a cordon is of the cluster, and not of a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

TOGETHER = timedelta(minutes=15)
"""Time between two findings that may be of one fault."""
LEAST_NODES, MOST_NODES = 2, 144
"""Nodes that are behind one switch. A label that more nodes share names no such domain."""


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
    """Whether so many accusations of the nodes of a domain are rather its switch's."""
    return accused >= LEAST_NODES and 2 * accused > nodes and nodes <= MOST_NODES


def switch_of(domain: str, accused: int, nodes: int) -> Switch | None:
    """Return the switch that an accusation of a node is of, if it is.

    Args:
        accused: how many nodes of the domain are accused together with it, this one included.
        nodes: how many the domain has.
    """
    return Switch(domain, accused, nodes) if domain and is_switch(accused, nodes) else None


def room_taken(domains: Iterable[str], nodes_of: Callable[[str], int]) -> int:
    """Return how much of the limit cordoned nodes take: those behind one switch count once.

    Args:
        domains: of each cordoned node, its domain.
        nodes_of: how many nodes a domain has.
    """
    counts = Counter(domains)
    return sum(1 if is_switch(n, nodes_of(domain)) else n for domain, n in counts.items())
