"""Decides which nodes a Pod may run on, apart from room: selectors, affinity, taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum

from localcluster.resource import JSON


class TaintEffect(Enum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


KEEPS_PODS_AWAY = frozenset({TaintEffect.NO_SCHEDULE.value, TaintEffect.NO_EXECUTE.value})


def tolerates(toleration: JSON, taint: JSON) -> bool:
    """Whether one toleration covers one taint. Empty fields of a toleration mean any."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
        case _:
            return False


def untolerated_taint(
    taints: Iterable[JSON], tolerations: Sequence[JSON], effects: frozenset[str] = KEEPS_PODS_AWAY
) -> JSON | None:
    """The first taint with one of the effects that nothing tolerates."""
    for taint in taints:
        if taint["effect"] in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def matches_expression(expression: JSON, present: dict[str, str]) -> bool:
    """One matchExpressions or matchFields entry."""
    value = present.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            with suppress(TypeError, ValueError, IndexError):
                left, right = int(value), int(values[0])  # type: ignore[arg-type]  # None is a TypeError
                return left > right if operator == "Gt" else left < right
            return False
        case _:
            return False


def _matches_term(term: JSON, labels: dict[str, str], fields: dict[str, str]) -> bool:
    expressions = term.get("matchExpressions") or []
    field_expressions = term.get("matchFields") or []
    if not expressions and not field_expressions:
        return False
    return all(matches_expression(expression, labels) for expression in expressions) and all(
        matches_expression(expression, fields) for expression in field_expressions
    )


def matches_node(spec: JSON, node: JSON) -> bool:
    """nodeSelector, and required node affinity: any one of its terms."""
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(_matches_term(term, labels, fields) for term in affinity["nodeSelectorTerms"])


def preference(spec: JSON, node: JSON) -> int:
    """The weights of the preferred node affinity terms that the node meets."""
    terms = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    )
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    return sum(t["weight"] for t in terms or () if _matches_term(t["preference"], labels, fields))


def is_ready(node: JSON) -> bool:
    """Whether the node's kubelet says, and is believed, that it can run Pods."""
    conditions = node.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
