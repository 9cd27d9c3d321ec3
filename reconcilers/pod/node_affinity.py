"""Which nodes a Pod may have, added to what its template says of that; each changes the Pod's spec.

Nodes are meant by their names and not by the label kubernetes.io/hostname, which may differ. Kubernetes takes
one value for a field, so every node is a requirement of its own; all of a term's must hold.
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
STRONGEST_PREFERENCE = 100


def rather_not_on(spec: Object, nodes: Iterable[str]) -> None:
    """Better there than nowhere, though."""
    if avoided := _by_name("NotIn", nodes):
        affinity = _node_affinity(spec)
        wish = {"weight": STRONGEST_PREFERENCE, "preference": {"matchFields": avoided}}
        affinity[PREFERRED] = [*(affinity.get(PREFERRED) or ()), wish]


def never_on(spec: Object, nodes: Iterable[str]) -> None:
    _require(spec, _by_name("NotIn", nodes))


def only_on(spec: Object, node: str) -> None:
    """As a DaemonSet's Pods are pinned: the scheduler still sees to it that there is room."""
    _require(spec, _by_name("In", [node]))


def _by_name(operator: str, nodes: Iterable[str]) -> list[Object]:
    return [{"key": "metadata.name", "operator": operator, "values": [node]} for node in nodes]


def _require(spec: Object, requirements: list[Object]) -> None:
    """Terms are alternatives, so each gets them; but one that is empty admits no node, and stays so."""
    if not requirements:
        return
    affinity = _node_affinity(spec)
    if affinity.get(REQUIRED) is None:
        affinity[REQUIRED] = {"nodeSelectorTerms": [{"matchFields": requirements}]}
        return
    for term in affinity[REQUIRED].get("nodeSelectorTerms") or ():
        if term.get("matchExpressions") or term.get("matchFields"):
            term["matchFields"] = [*(term.get("matchFields") or ()), *requirements]


def _node_affinity(spec: Object) -> Object:
    """The Pod's, made where there is none."""
    spec["affinity"] = spec.get("affinity") or {}
    spec["affinity"]["nodeAffinity"] = spec["affinity"].get("nodeAffinity") or {}
    found: Object = spec["affinity"]["nodeAffinity"]
    return found
