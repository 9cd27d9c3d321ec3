"""Which of two checks goes first that want the same nodes: their tests would disturb each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from crds.model import ObjectMeta
from crds.nodecheck import NodeCheck

_AT_ONCE = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Claim:
    """An unfinished check, and the nodes that it has or wants."""

    check: NodeCheck
    nodes: frozenset[str]


@dataclass(frozen=True)
class Obstacle:
    node: str
    check: ObjectMeta

    def __str__(self) -> str:
        return f"node {self.node} is being checked by NodeCheck {self.check.namespace}/{self.check.name}"


def in_the_way(check: NodeCheck, nodes: Collection[str], claims: Iterable[Claim]) -> Obstacle | None:
    """The first of the others that has one of the nodes already, or is older and wants it."""
    for claim in sorted(claims, key=lambda claim: _age(claim.check)):
        if claim.check.metadata.uid == check.metadata.uid:
            continue
        if claim.check.status.nodes or _age(claim.check) < _age(check):
            common = next((node for node in nodes if node in claim.nodes), None)
            if common is not None:
                return Obstacle(common, claim.check.metadata)
    return None


def _age(check: NodeCheck) -> tuple[datetime, str]:
    return check.metadata.creation_timestamp or _AT_ONCE, check.metadata.uid
