"""An estimate of what a type's Pods request, and of the nodes that could take them. Pure.

A webhook may change each Pod, so nothing is refused by it; it keeps a job from asking for too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from reconcilers.observed.builder import REQUIRED
from reconcilers.observed.resources import MAX_CHARACTERS, mapping, parse

Part = Mapping[str, Any]
"""A part of an object."""
PASSING = "node.kubernetes.io/"
"""Prefix of the taints of a node that is temporarily out of order."""
EFFECTS = ("NoSchedule", "NoExecute")


def others_of(spec: Part) -> list[Part]:
    """Return the containers that run beside the first one: the Pod's others, and its sidecars.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
    """
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    return [*spec["containers"][1:], *sidecars]


def amounts_of(containers: Iterable[Part]) -> dict[str, Fraction]:
    """Return the sum of requests; a limit counts as a request where there is none."""
    total: dict[str, Fraction] = {}
    for container in containers:
        resources = mapping(container.get("resources"))
        asked = {**mapping(resources.get("limits")), **mapping(resources.get("requests"))}
        for name, quantity in asked.items():
            total[name] = total.get(name, Fraction(0)) + amount_of(quantity)
    return total


def allocatable(node: Part, name: str) -> Fraction:
    return amount_of(mapping(mapping(node.get("status")).get("allocatable")).get(name, 0))


def amount_of(quantity: Any) -> Fraction:
    text = str(quantity)
    return _amount(text) if len(text) <= MAX_CHARACTERS else Fraction(0)  # the cache keeps the texts


@lru_cache(maxsize=4096)  # thousands of nodes have few different ones
def _amount(quantity: str) -> Fraction:
    try:
        return parse(quantity)
    except ValueError:  # the API server will report it
        return Fraction(0)


class Sizes:
    """Resources that the nodes of a cluster can allocate to Pods."""

    def __init__(self, nodes: Collection[Part]) -> None:
        self.nodes = nodes

    @cached_property
    def largest(self) -> dict[str, Part]:
        """Nodes with most of a resource, by the resource's name."""
        most: dict[str, tuple[Fraction, Part]] = {}
        for node in self.nodes:
            for name, quantity in mapping(mapping(node.get("status")).get("allocatable")).items():
                amount = amount_of(quantity)
                if name not in most or most[name][0] < amount:
                    most[name] = amount, node
        return {name: node for name, (_, node) in most.items()}

    def with_room_for(self, amounts: Mapping[str, Fraction]) -> Iterator[Part]:
        """Yield the nodes that can allocate all of this to one Pod."""
        needed = [(name, amount) for name, amount in amounts.items() if amount > 0]
        return (n for n in self.nodes if all(allocatable(n, name) >= amount for name, amount in needed))


def may_take(node: Part, spec: Part, asked: Collection[str]) -> bool:
    """Whether a node can certainly take Pods of a template's spec.

    Selector and taints are compared; taints named like a requested resource are tolerated, as by the plugin:
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    labels = mapping(mapping(node.get("metadata")).get("labels"))
    if mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(REQUIRED):
        return False
    if any(labels.get(key) != value for key, value in mapping(spec.get("nodeSelector")).items()):
        return False
    tolerated = {*asked, *(each.get("key") for each in spec.get("tolerations") or ())}
    taints = mapping(node.get("spec")).get("taints") or ()
    keys = (each["key"] for each in taints if each["effect"] in EFFECTS)
    return None in tolerated or all(key in tolerated or key.startswith(PASSING) for key in keys)
