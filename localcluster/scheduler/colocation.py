"""Which Pods may share a topology domain: required Pod affinity and anti-affinity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localcluster.resource import JSON
from localcluster.scheduler.constraints import matches_selector

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Placed:
    """A Pod and the labels of the node it is on."""

    pod: JSON
    node_labels: dict[str, str]


def required_terms(pod: JSON, kind: str) -> Sequence[JSON]:
    """`kind` is podAffinity or podAntiAffinity."""
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return affinity.get(REQUIRED) or ()


def _concerns(term: JSON, owner: JSON, other: JSON) -> bool:
    """Whether a term of `owner` speaks of `other`. Namespaces by name; a namespaceSelector means all."""
    namespaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    if term.get("namespaceSelector") is None and other["metadata"]["namespace"] not in namespaces:
        return False
    return matches_selector(term.get("labelSelector"), other["metadata"].get("labels") or {})


def _same_domain(term: JSON, left: dict[str, str], right: dict[str, str]) -> bool:
    key = term["topologyKey"]
    return key in left and left[key] == right.get(key)


def violates_anti_affinity(pod: JSON, node_labels: dict[str, str], placed: Iterable[Placed]) -> bool:
    """Either the Pod's own terms, or a placed Pod's against the newcomer."""
    own = required_terms(pod, "podAntiAffinity")
    for other in placed:
        for term in own:
            if _concerns(term, pod, other.pod) and _same_domain(term, node_labels, other.node_labels):
                return True
        for term in required_terms(other.pod, "podAntiAffinity"):
            if _concerns(term, other.pod, pod) and _same_domain(term, node_labels, other.node_labels):
                return True
    return False


def violates_affinity(pod: JSON, node_labels: dict[str, str], placed: Sequence[Placed]) -> bool:
    """Every term needs a matching Pod in the domain; the first of a group that seeks itself may start one."""
    for term in required_terms(pod, "podAffinity"):
        if term["topologyKey"] not in node_labels:
            return True
        matching = [other for other in placed if _concerns(term, pod, other.pod)]
        if not matching and _concerns(term, pod, pod):
            continue
        if not any(_same_domain(term, node_labels, other.node_labels) for other in matching):
            return True
    return False
