"""Options of the controller about cordons. Standard library only: the CLI reads it at start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_LIMIT_PERCENT = 10

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
    """A dry run: conditions and Events tell what would be done; but for its record, no node changes."""
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
