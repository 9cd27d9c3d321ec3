"""Which nodes a type's Pods may be on, as far as their template says, and what they ask for there. Pure.

A webhook may say more in each Pod, so this refuses nothing: it is for what would be asked for too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from controller.resources import Object
from reconcilers.observed.builder import REQUIRED
from reconcilers.observed.quantities import parse
from reconcilers.observed.resources import mapping

Part = Mapping[str, Any]
"""A part of an object."""
PASSING = "node.kubernetes.io/"
"""Beginning of the taints of a node that is out of order for a while."""
EFFECTS = ("NoSchedule", "NoExecute")


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
    return _amount(str(quantity))


@lru_cache(maxsize=4096)  # thousands of nodes have few different ones
def _amount(quantity: str) -> Fraction:
    try:
        return parse(quantity)
    except ValueError:  # not ours to say: the API server will
        return Fraction(0)


def is_suitable(node: Part, template: Object) -> bool:
    """Whether node selector, required node affinity and tolerations let the template's Pods on the node."""
    spec = template["spec"]
    metadata = mapping(node.get("metadata"))
    labels, fields = mapping(metadata.get("labels")), {"metadata.name": metadata.get("name")}
    selector = mapping(spec.get("nodeSelector"))
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    required = mapping(mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(REQUIRED))
    terms = required.get("nodeSelectorTerms") or ()
    if terms and not any(_meets(term, labels, fields) for term in terms):
        return False
    taints = mapping(node.get("spec")).get("taints") or ()
    return all(_is_borne(taint, spec) for taint in taints)


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


def _is_borne(taint: Part, spec: Part) -> bool:
    """An admission plugin lets Pods on the nodes that are tainted for the resource that they ask for.

    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    key, effect = taint["key"], taint["effect"]
    if effect not in EFFECTS or key.startswith(PASSING) or key in amounts_of(spec["containers"]):
        return True
    return any(
        each.get("effect") in (None, "", effect) and _bears(each, key, taint.get("value") or "")
        for each in spec.get("tolerations") or ()
    )


def _bears(toleration: Part, key: str, value: str) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
    operator, theirs = toleration.get("operator") or "Equal", toleration.get("key")
    if operator == "Exists":
        return theirs in (None, "", key)
    compared = "In" if operator == "Equal" else operator
    expression = {"key": key, "operator": compared, "values": [toleration.get("value") or ""]}
    return theirs == key and _holds(expression, {key: value})
