"""Options of the controller about cordons, and their limit. Standard library only, for the CLI's start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_LIMIT_PERCENT = 10
ALL_NODES = "all nodes"
"""The pool that every node is in."""

DEFAULT_POOLS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
)
"""Labels of nodes: the kind of GPU (NVIDIA's GPU feature discovery), and the node pools of GKE, EKS, AKS and
Karpenter. All nodes with the same value of one are a pool."""


class CordonMode(StrEnum):
    ENFORCE = "enforce"
    """Faulty nodes are cordoned."""
    REPORT = "report"
    """A dry run: conditions and Events say what would be done; but for its record, no node changes."""
    OFF = "off"
    """Nodes are only read, as by a controller that has no other right to them."""


NOT_ENFORCED = "not cordoned: the controller runs with --cordon=report"
"""Statement on a node that a dry run leaves in service."""


@dataclass(frozen=True)
class CordonOptions:
    mode: CordonMode = CordonMode.ENFORCE
    limit_percent: int = DEFAULT_LIMIT_PERCENT
    """How many of all nodes, and of each pool, may be cordoned by us at once; one always may."""
    pools: tuple[str, ...] = DEFAULT_POOLS
    """What makes pools of nodes: a label (`karpenter.sh/nodepool`), of which each value is a pool, or a
    selector (`team=a,tier=gpu`), of which the nodes that match are one. A node may be in several."""


def limit_of(nodes: int, percent: int) -> int:
    """How many of so many nodes may be cordoned by us at once; at least one."""
    return max(1, nodes * percent // 100)


def held_back(full: str | None) -> str:
    """Say why a node is not cordoned: this pool, or all nodes, has no room."""
    of = ALL_NODES if full in (None, ALL_NODES) else f"the nodes with {full}"
    return f"not cordoned: of {of}, as many are as --cordon-limit allows"


def pools_of(labels: Mapping[str, str], rules: Iterable[str]) -> frozenset[str]:
    """The pools of a node with these labels, such as `nvidia.com/gpu.product=H100`."""
    found = set()
    for rule in rules:
        if "=" not in rule:
            found |= {f"{rule}={labels[rule]}"} if rule in labels else set()
        elif all(labels.get(key) == value for key, value in selector_of(rule).items()):
            found.add(rule)
    return frozenset(found)


def selector_of(rule: str) -> dict[str, str]:
    """Read labels of `a=b,c=d`; raise ValueError for anything else."""
    labels = {}
    for part in rule.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key or any(sign in key + value for sign in "=!() "):
            raise ValueError(
                f"a pool is a label, or labels with values such as team=a,tier=gpu; not {rule!r}"
            )
        labels[key] = value
    return labels
