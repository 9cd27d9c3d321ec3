"""The rights that the Roles of an installation give to its controller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

JSON = dict[str, Any]


class Right(NamedTuple):
    verb: str
    group: str
    resource: str
    """Plural, with its subresource."""
    name: str
    namespace: str
    """Empty for one in all namespaces."""


def rights_of_controller(documents: Iterable[JSON]) -> set[Right]:
    roles = [
        each
        for each in documents
        if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"].startswith("dlr-controller")
    ]
    return {
        Right(verb, group, resource, name, role["metadata"].get("namespace", ""))
        for role in roles
        for rule in role["rules"]
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ("",)
    }
