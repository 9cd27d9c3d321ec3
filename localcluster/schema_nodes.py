"""Finding one's way in OpenAPI v3 schemas: references between components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcluster.resource import JSON

Components = Mapping[str, JSON]
"""Component name to schema."""

REFERENCE_PREFIX = "#/components/schemas/"


def reference_to(component: str) -> JSON:
    return {"$ref": REFERENCE_PREFIX + component}


def referenced_component(schema: JSON) -> str | None:
    """The component that a schema stands for, if it is a reference."""
    reference = schema.get("$ref")
    return reference.removeprefix(REFERENCE_PREFIX) if isinstance(reference, str) else None


def resolve(schema: JSON, components: Components) -> JSON:
    """The schema itself, or what it refers to."""
    while (component := referenced_component(schema)) is not None:
        schema = components[component]
    return schema


def references(node: Any) -> set[str]:
    """The components that a schema names, at any depth."""
    if isinstance(node, dict):
        found = {name for child in node.values() for name in references(child)}
        component = referenced_component(node)
        return found | {component} if component is not None else found
    if isinstance(node, list):
        return {name for child in node for name in references(child)}
    return set()


def reachable(roots: set[str], components: Components) -> set[str]:
    """The components that some need, directly or through others, and these themselves."""
    found: set[str] = set()
    waiting = set(roots)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= references(components[name]) - found
    return found
