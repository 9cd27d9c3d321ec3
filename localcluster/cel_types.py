"""What CEL rules know of a schema: the type of each level, and how large it can be at most.

After SchemaDeclType of Kubernetes (staging/src/k8s.io/apiserver/pkg/cel/common/schemas.go).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localcluster.cel_values import escape
from localcluster.resource import JSON
from localcluster.schema_nodes import Node

REQUEST_BYTES = 3 * 1024 * 1024
"""The longest request that the estimates reckon with."""
_STRING_FORMATS = {
    "byte": ("bytes", REQUEST_BYTES - 2, 2),
    "date": ("timestamp", 12, 12),
    "date-time": ("timestamp", 32, 21),
    "duration": ("duration", 32, 3),
}
"""CEL's type, the most characters and the fewest that it takes as JSON."""
_SCALARS = {"boolean": ("bool", 4), "integer": ("int", 1), "number": ("double", 1)}


@dataclass(frozen=True)
class Type:
    """A type of CEL; two objects are of one type only where they are of the same level of a schema."""

    name: str
    """dyn, bool, int, uint, double, string, bytes, list, map, object, ...; a capital letter is a variable"""
    parameters: tuple[Type, ...] = ()
    level: int = 0
    fields: dict[str, Declaration] | None = field(default=None, compare=False, repr=False)
    """The fields of an object, by escaped name."""

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(str(each) for each in self.parameters)})"


DYN, BOOL, INT, STRING, NULL = (Type(name) for name in ("dyn", "bool", "int", "string", "null_type"))


@dataclass(frozen=True)
class Declaration:
    """A level of a schema as rules see it."""

    type: Type
    max_elements: int = 0
    """The most elements of a list or map, or characters of a string; 0 for what has one size."""
    min_bytes: int = 0
    """The fewest bytes that a value takes as JSON."""
    element: Declaration | None = None
    """The declaration of a list's or map's elements."""

    @property
    def fields(self) -> dict[str, Declaration]:
        return self.type.fields or {}


_KEY = Declaration(STRING, 0, 2)
"""A map's key: its length is not counted."""


def key_of(declaration: Declaration) -> Declaration | None:
    return _KEY if declaration.type.name == "map" else None


def declare(node: Node) -> Declaration | None:
    """What rules see of a level; None where they cannot see it: data without a type, and lists of it."""
    schema = node.schema
    if schema.get("x-kubernetes-int-or-string"):
        longest = _characters(schema) if "maxLength" in schema else REQUEST_BYTES - 2
        return Declaration(DYN, longest, 1)
    match schema.get("type"):
        case "array":
            return None if node.items is None else _list(node, node.items)
        case "object":
            return _object(node) if node.additional is None else _map(node, node.additional)
        case "string":
            return _string(schema)
        case name if name in _SCALARS:
            kind, smallest = _SCALARS[name]
            return Declaration(Type(kind), 0, smallest)
    return None


def _list(node: Node, items: Node) -> Declaration | None:
    element = declare(items)
    if element is None:
        return None
    fitting = (REQUEST_BYTES - 2) // (element.min_bytes + 1)
    most = max(0, node.schema.get("maxItems", fitting))
    return Declaration(Type("list", (element.type,)), most, 2, element)


def _map(node: Node, additional: Node) -> Declaration | None:
    element = declare(additional)
    if element is None:
        return None
    fitting = (REQUEST_BYTES - 2) // (element.min_bytes + 6)
    most = max(0, node.schema.get("maxProperties", fitting))
    return Declaration(Type("map", (STRING, element.type)), most, 2, element)


def _object(node: Node) -> Declaration:
    properties = dict(node.properties)
    if node.is_resource and not _says_all_of_metadata(node.schema):
        text = Node({"type": "string"})
        names = {"name": text, "generateName": text}
        properties |= {"apiVersion": text, "kind": text, "metadata": Node({"type": "object"}, names)}
    required = set(node.schema.get("required") or ())
    fields: dict[str, Declaration] = {}
    smallest = 2
    for name, child in properties.items():
        declaration = declare(child)
        if declaration is not None:
            fields[escape(name)] = declaration
            if name in required and name not in node.defaults:
                smallest += len(name) + declaration.min_bytes + 4
    return Declaration(Type("object", level=id(node), fields=fields), 0, smallest)


def _says_all_of_metadata(schema: JSON) -> bool:
    """Whether a resource's schema itself describes everything that rules may see of its metadata."""
    properties = schema.get("properties") or {}
    metadata = properties.get("metadata") or {}
    names = metadata.get("properties") or {}
    texts = [
        properties.get("kind"),
        properties.get("apiVersion"),
        names.get("name"),
        names.get("generateName"),
    ]
    return metadata.get("type") == "object" and all(each and each.get("type") == "string" for each in texts)


def _characters(schema: JSON) -> int:
    """A character may take four bytes."""
    return max(0, int(schema["maxLength"])) * 4


def _string(schema: JSON) -> Declaration:
    if schema.get("format") in _STRING_FORMATS:
        kind, longest, smallest = _STRING_FORMATS[schema["format"]]
        if kind == "bytes" and "maxLength" in schema:
            longest = max(0, schema["maxLength"])
        return Declaration(Type(kind), longest, smallest)
    if "maxLength" in schema:
        return Declaration(STRING, _characters(schema), 2)
    if schema.get("enum"):
        return Declaration(STRING, max(len(each) for each in schema["enum"] if isinstance(each, str)), 2)
    return Declaration(STRING, REQUEST_BYTES - 2, 2)
