"""The NVLink domain of a node: the value of one of its labels. Pure.

The nodes of a domain share one switch: their links are fast, and they fail together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crds import names

MOST_LEVELS = 8
"""Most labels compared of a node, as many as `nodeCheck.topologyKeys` may have."""
AUTO = "auto"
"""`elasticPolicy.domain`: the first of `names.NVLINK_LABELS` that a node has."""


def labels_of(policy: str | None) -> tuple[str, ...]:
    """Return the node labels that `elasticPolicy.domain` names; the first that a node has counts."""
    if not policy:
        return ()
    return names.NVLINK_LABELS if policy == AUTO else (policy,)


def domain_of(node: Mapping[str, Any], policy: str | None) -> str:
    """Return the domain of a raw Node; empty if it has no such label."""
    return labelled_domain(node["metadata"].get("labels") or {}, policy)[1]


def labelled_domain(labels: Mapping[str, str], policy: str | None) -> tuple[str, str]:
    """Return the label that names a node's domain, and its value; both empty if the node has none."""
    return next(((label, labels[label]) for label in labels_of(policy) if labels.get(label)), ("", ""))


def shared_labels(policy: str | None, topology_keys: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that group a job's nodes, smallest first: domain, then `nodeCheck.topologyKeys`.

    `auto` stands for the first NVLink label that a node has.
    """
    return tuple(dict.fromkeys((*filter(None, (policy,)), *topology_keys)))[:MOST_LEVELS]
