"""OpenAPI v3 schemas as graphs: references between components, and nodes with the references resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@dataclass(eq=False)
class Node:
    """One level of a schema. Nodes form a graph: the schema of schemas contains itself."""

    schema: JSON
    properties: dict[str, Node] = field(default_factory=dict)
    defaults: JSON = field(default_factory=dict)
    """Defaults of the properties."""
    additional: Node | None = None
    items: Node | None = None
    is_resource: bool = False
    """The root of a kind, or an object embedded in one: it has apiVersion, kind and metadata."""

    @property
    def preserves_unknown(self) -> bool:
        return bool(self.schema.get(PRESERVE)) or self.schema.get("additionalProperties") is True

    @property
    def nullable(self) -> bool:
        return bool(self.schema.get("nullable"))


def build(schema: JSON, components: Components, *, is_resource: bool) -> Node:
    """The graph of a schema; `is_resource` for the root of a CRD, whose metadata is implied."""
    return _Builder(components).node(schema, is_resource=is_resource)


class _Builder:
    def __init__(self, components: Components) -> None:
        self._components = components
        self._shared: dict[str, Node] = {}

    def node(self, schema: JSON, *, is_resource: bool = False) -> Node:
        component = referenced_component(schema)
        if component is None:
            return self._fill(Node(schema), is_resource=is_resource)
        if component not in self._shared:
            self._shared[component] = node = Node(resolve(schema, self._components))
            self._fill(node)
        return self._shared[component]

    def _fill(self, node: Node, *, is_resource: bool = False) -> Node:
        schema = node.schema
        node.is_resource = is_resource or bool(schema.get(EMBEDDED))
        for name, child in (schema.get("properties") or {}).items():
            node.properties[name] = self.node(child)
            default = child.get("default", resolve(child, self._components).get("default"))
            if default is not None:
                node.defaults[name] = default
        if node.is_resource:
            self._add_resource_fields(node)
        if isinstance(schema.get("additionalProperties"), dict):
            node.additional = self.node(schema["additionalProperties"])
        if isinstance(schema.get("items"), dict):
            node.items = self.node(schema["items"])
        return node

    def _add_resource_fields(self, node: Node) -> None:
        """A CRD may say more of metadata.name and generateName, and nothing of the rest."""
        text = Node({"type": "string"})
        node.properties.setdefault("apiVersion", text)
        node.properties.setdefault("kind", text)
        implied = self.node(reference_to(OBJECT_META))
        said = node.properties.get("metadata")
        if said is None or said is implied:
            node.properties["metadata"] = implied
            return
        merged = Node({**implied.schema, **said.schema})
        merged.properties = {**implied.properties, **said.properties}
        node.properties["metadata"] = merged
