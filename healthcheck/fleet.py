"""What is checked: nodes, the links between them, and the racks or switches they share."""

from __future__ import annotations

from dataclasses import dataclass

NodeName = str

Link = frozenset[NodeName]
"""Two nodes, in no order."""


@dataclass(frozen=True)
class Domain:
    """One value of a topology label, such as rack=r12, whose nodes may fail together."""

    level: str
    name: str

    def __str__(self) -> str:
        return f"{self.level}={self.name}"


@dataclass(frozen=True)
class Node:
    """One node to check. Its place in the given order is its rank; names decide nothing."""

    name: NodeName
    hardware_class: str = ""
    """Nodes are compared with those of the same class only, such as the accelerator's product name."""
    domains: tuple[Domain, ...] = ()
    """Smallest first."""
    vouched: bool = False
    """It passed a check that is still fresh, with other partners: a reference."""
    vouch_age_seconds: float = 0.0
    """Seconds since that check, if the node is vouched for."""

    @property
    def smallest_domain(self) -> Domain | None:
        return self.domains[0] if self.domains else None

    def vouches(self, at_most_seconds: float) -> bool:
        """Whether its vouch is young enough to speak against another node."""
        return self.vouched and self.vouch_age_seconds <= at_most_seconds
