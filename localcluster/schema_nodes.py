"""Finding one's way in OpenAPI v3 schemas: references between components."""

from __future__ import annotations

from collections.abc import Mapping

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
