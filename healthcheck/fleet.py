"""Objects of a check: nodes, the links between them, and the racks or switches they share."""

from __future__ import annotations

from dataclasses import dataclass

NodeName = str

Link = frozenset[NodeName]
"""Two nodes, unordered."""


@dataclass(frozen=True)
class Domain:
    """One value of a topology label, such as rack=r12, whose nodes may fail together."""

    level: str
    name: str

    def __str__(self) -> str:
        return f"{self.level}={self.name}"


@dataclass(frozen=True)
class Node:
    """One node to check. Its position in the given order is its rank; names decide nothing."""

    name: NodeName
    hardware_class: str = ""
    """Class of hardware, such as the accelerator's product name; nodes are compared only within a class."""
    domains: tuple[Domain, ...] = ()
    """Domains of the node, smallest first."""
    vouched: bool = False
    """Whether it recently passed a check with other partners, and so serves as a reference."""
    vouch_age_seconds: float = 0.0
    """Seconds since that check, if `vouched`."""

    @property
    def smallest_domain(self) -> Domain | None:
        return self.domains[0] if self.domains else None

    def vouches(self, at_most_seconds: float) -> bool:
        """Return whether its vouch is recent enough to accuse another node."""
        return self.vouched and self.vouch_age_seconds <= at_most_seconds
