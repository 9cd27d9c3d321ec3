"""Signs on a Node that its Pods will be evicted. Pure.

Sources of the names, read in November 2026:

* cordon: `kubectl drain`, Cluster API, kured, AKS and GKE do so
* GKE: cloud.google.com/kubernetes-engine/docs/how-to/handle-disruption-gpu-tpu
* Karpenter: karpenter.sh/docs/concepts/disruption (`disrupted` since v1, `disruption` before)
* cluster-autoscaler: utils/taints (a candidate for deletion, its other taint, may stay)
* AKS: learn.microsoft.com/azure/aks/node-auto-drain
* AWS: github.com/aws/aws-node-termination-handler, `TAINT_NODE`
* conditions: k8s.io/api/core/v1/types.go of 1.37 ("the admin is responsible for setting")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crds import names

TAINTS = frozenset(
    {
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "ToBeDeletedByClusterAutoscaler",
        "remediator.kubernetes.azure.com/unschedulable",
        "remediator.aks.microsoft.com/unschedulable",
    }
)
TAINT_PREFIX = "aws-node-termination-handler/"
EFFECT = "NoSchedule"
"""NoExecute evicts at once, and PreferNoSchedule announces nothing."""
CONDITIONS = frozenset({"MaintenancePlanned", "MaintenanceInProgress", "DrainInProgress"})


def announcement(node: Mapping[str, Any]) -> str:
    """Return the sign on a raw Node that its Pods will be evicted, such as `is cordoned`; else empty."""
    spec = node.get("spec") or {}
    taints = [taint["key"] for taint in spec.get("taints") or () if taint.get("effect") == EFFECT]
    if spec.get("unschedulable") or names.TAINT_UNSCHEDULABLE in taints:
        return "is cordoned"
    for key in taints:
        if key in TAINTS or key.startswith(TAINT_PREFIX):
            return f"has the taint {key}"
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") in CONDITIONS and condition.get("status") == "True":
            return f"has the condition {condition['type']}"
    return ""
