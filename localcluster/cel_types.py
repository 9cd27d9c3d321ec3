"""The types that CEL rules see at each level of a schema.

After SchemaDeclType of Kubernetes (staging/src/k8s.io/apiserver/pkg/cel/common/schemas.go).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localcluster.cel_values import escape
from localcluster.resource import JSON
from localcluster.schema_nodes import Node

_STRING_FORMATS = {"byte": "bytes", "date": "timestamp", "date-time": "timestamp", "duration": "duration"}
_SCALARS = {"boolean": "bool", "integer": "int", "number": "double"}


@dataclass(frozen=True)
class Type:
    """A type of CEL; two objects are of one type only where they are of the same level of a schema."""

    name: str
    """dyn, bool, int, uint, double, string, bytes, list, map, object, ...; a capital letter is a variable"""
    parameters: tuple[Type, ...] = ()
    level: int = 0
    fields: dict[str, Type] | None = field(default=None, compare=False, repr=False)
    """The fields of an object, by escaped name."""

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(str(each) for each in self.parameters)})"


DYN, BOOL, STRING = Type("dyn"), Type("bool"), Type("string")


def declare(node: Node) -> Type | None:
    """The type of a level; None where rules cannot see it: data without a type, and lists of it."""
    schema = node.schema
    if schema.get("x-kubernetes-int-or-string"):
        return DYN
    match schema.get("type"):
        case "array":
            element = None if node.items is None else declare(node.items)
            return None if element is None else Type("list", (element,))
        case "object" if node.additional is not None:
            element = declare(node.additional)
            return None if element is None else Type("map", (STRING, element))
        case "object":
            return _object(node)
        case "string":
            return Type(_STRING_FORMATS.get(schema.get("format", ""), "string"))
        case name if name in _SCALARS:
            return Type(_SCALARS[name])
    return None


def _object(node: Node) -> Type:
    properties = dict(node.properties)
    if node.is_resource and not _says_all_of_metadata(node.schema):
        text = Node({"type": "string"})
        names = {"name": text, "generateName": text}
        properties |= {"apiVersion": text, "kind": text, "metadata": Node({"type": "object"}, names)}
    declared = {escape(name): declare(child) for name, child in properties.items()}
    fields = {name: kind for name, kind in declared.items() if kind is not None}
    return Type("object", level=id(node), fields=fields)


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
