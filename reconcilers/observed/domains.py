"""The NVLink domain of a node: the value of one of its labels. Pure.

The nodes of a domain share one switch: they are fast with each other, and fail together. Sources of the
labels that `auto` reads, read in November 2026:

* nvidia.com/gpu.clique: NVIDIA's GPU feature discovery, `<cluster uuid>.<clique>`
* topograph: its labels since 1.0, and those before (docs.nvidia.com/topograph, node labels)
* a ComputeDomain of NVIDIA's DRA driver puts its uid on the nodes of one workload
"""

from __future__ import annotations

from collections.abc import Mapping

AUTO = "auto"
"""`elasticPolicy.domain`: the first of `AUTO_LABELS` that a node has."""
AUTO_LABELS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "resource.nvidia.com/computeDomain",
)


def labels_of(policy: str | None) -> tuple[str, ...]:
    """Return the node labels that `elasticPolicy.domain` names, the first that a node has counts."""
    if not policy:
        return ()
    return AUTO_LABELS if policy == AUTO else (policy,)


def domain_of(node: Mapping[str, object], policy: str | None) -> str:
    """Return the domain of a raw Node; empty if it has no such label."""
    metadata = node["metadata"]
    assert isinstance(metadata, Mapping)
    labels = metadata.get("labels") or {}
    return next((str(labels[label]) for label in labels_of(policy) if labels.get(label)), "")
