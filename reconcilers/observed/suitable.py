"""Which nodes a type's Pods may be on, as far as their template says, and what they ask for there. Pure.

A webhook may say more in each Pod, so this refuses nothing: it is for what would be asked for too much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from controller.resources import Object
from reconcilers.observed.builder import REQUIRED
from reconcilers.observed.resources import KINDS, MAX_CHARACTERS, mapping, parse

Part = Mapping[str, Any]
"""A part of an object."""
PASSING = "node.kubernetes.io/"
"""Beginning of the taints of a node that is out of order for a while."""
EFFECTS = ("NoSchedule", "NoExecute")
MOST_REQUIREMENTS = 64
"""Comparisons and tolerations of a template that are tried with each node; one with more excludes none."""


def others_of(spec: Part) -> list[Part]:
    """The containers that run beside the first one: the Pod's others, and its sidecars.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
    """
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    return [*spec["containers"][1:], *sidecars]


def amounts_of(containers: Iterable[Part]) -> dict[str, Fraction]:
    """What they ask for in all; a limit is a request where there is no other."""
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
    return _amount(text) if len(text) <= MAX_CHARACTERS else Fraction(0)  # the texts stay in memory


@lru_cache(maxsize=4096)  # thousands of nodes have few different ones
def _amount(quantity: str) -> Fraction:
    try:
        return parse(quantity)
    except ValueError:  # not ours to say: the API server will
        return Fraction(0)


class Sizes:
    """What the nodes of a cluster can allocate to Pods."""

    def __init__(self, nodes: Collection[Part]) -> None:
        self.nodes = nodes

    @cached_property
    def largest(self) -> dict[str, Part]:
        """The node with most of each resource, by the resource's name."""
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


class Placement:
    """The nodes that selector, affinity and tolerations of a template let its Pods be on."""

    def __init__(self, template: Object) -> None:
        spec = template["spec"]
        self._selector = mapping(spec.get("nodeSelector"))
        required = mapping(mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(REQUIRED))
        self._terms = required.get("nodeSelectorTerms") or ()
        self._tolerations = spec.get("tolerations") or ()
        resources = [mapping(each.get("resources")) for each in spec["containers"]]
        self._asked = {name for each in resources for kind in KINDS for name in mapping(each.get(kind))}
        requirements = sum(map(_count, self._terms)) + len(self._tolerations)
        self._is_any = requirements > MOST_REQUIREMENTS

    def takes(self, node: Part) -> bool:
        """Return whether the Pods may be on a node, as far as the template says."""
        metadata = mapping(node.get("metadata"))
        labels, fields = mapping(metadata.get("labels")), {"metadata.name": metadata.get("name")}
        if self._is_any or any(labels.get(key) != value for key, value in self._selector.items()):
            return self._is_any
        if self._terms and not any(_meets(term, labels, fields) for term in self._terms):
            return False
        return all(self._bears(taint) for taint in mapping(node.get("spec")).get("taints") or ())

    def _bears(self, taint: Part) -> bool:
        """An admission plugin lets Pods on the nodes that are tainted for the resource that they ask for.

        https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
        """
        key, effect = taint["key"], taint["effect"]
        if effect not in EFFECTS or key.startswith(PASSING) or key in self._asked:
            return True
        return any(
            each.get("effect") in (None, "", effect) and _bears(each, key, taint.get("value") or "")
            for each in self._tolerations
        )


def _count(term: Part) -> int:
    """Return how many comparisons a term of a node affinity asks for."""
    found = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    values = (each.get("values") for each in found)
    return len(found) + sum(len(each) for each in values if isinstance(each, list))


def _meets(term: Part, labels: Part, fields: Part) -> bool:
    """A term without requirements is met by no node."""
    expressions = [(each, labels) for each in term.get("matchExpressions") or ()]
    expressions += [(each, fields) for each in term.get("matchFields") or ()]
    return bool(expressions) and all(_holds(each, values) for each, values in expressions)


def _holds(expression: Part, present: Part) -> bool:
    """What the API server takes no Pod with, such as a comparison with nothing, holds on no node."""
    try:
        value, values = present.get(expression["key"]), list(expression.get("values") or ())
        match expression["operator"]:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt":
                return _number(value) > _number(values[0])
            case "Lt":
                return _number(value) < _number(values[0])
    except (KeyError, IndexError, TypeError):
        return False
    return False


def _number(text: object) -> float:
    try:
        return int(str(text))
    except ValueError:
        return float("nan")  # which is neither more nor less


def _bears(toleration: Part, key: str, value: str) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
    operator, theirs = toleration.get("operator") or "Equal", toleration.get("key")
    if operator == "Exists":
        return theirs in (None, "", key)
    compared = "In" if operator == "Equal" else operator
    expression = {"key": key, "operator": compared, "values": [toleration.get("value") or ""]}
    return theirs == key and _holds(expression, {key: value})
