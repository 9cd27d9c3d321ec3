"""Objects as CEL rules of CRDs see them: typed by their schema.

Numbers are doubles even when JSON wrote them without a point, times are timestamps, names that are no
identifiers are escaped, data that the schema does not describe is not there, and a field that is null is
absent. (An item of a list or of a map that is null is null.)
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from localcluster.cel import Projection
from localcluster.schema_nodes import Node

Converter = Callable[[Any], Any]

_RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"}
    | {"import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_SPECIAL = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_SPAN = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h|d|w)")
_UNIT_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
}


def escape(name: str) -> str:
    """A field's name as an identifier: `a-b` is `a__dash__b`, `namespace` is `__namespace__`."""
    if name in _RESERVED:
        return f"__{name}__"
    return re.sub(r"__|[.\-/]", lambda found: _SPECIAL[found[0]], name)


def declared(node: Node, projection: Projection) -> Projection:
    """A projection in the schema's own names, from one in escaped ones."""
    if projection is None:
        return None
    names = {escape(name): name for name in node.properties}
    result: dict[str, Projection] = {}
    for key, inner in projection.items():
        name = names.get(key, key)
        child = node.properties.get(name) or node.additional
        result[name] = inner if child is None else declared(child, inner)
    return result


def parse_duration(text: str) -> timedelta:
    """`1h30m`, `250ms`."""
    seconds = sum(float(found["number"]) * _UNIT_SECONDS[found["unit"]] for found in _SPAN.finditer(text))
    return timedelta(seconds=-seconds if text.startswith("-") else seconds)


def _timestamp(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_STRING_CONVERTERS: dict[str, Converter] = {
    "byte": base64.b64decode,
    "date": _timestamp,
    "date-time": _timestamp,
    "duration": parse_duration,
}


def converter(node: Node) -> Converter | None:
    """Return what converts an object's value to CEL's; None if they are the same."""
    kind = node.schema.get("type")
    if kind == "number":
        return lambda value: float(value) if type(value) is int else value
    if kind == "string":
        convert = _STRING_CONVERTERS.get(node.schema.get("format", ""))
        return None if convert is None else lambda value: convert(value) if type(value) is str else value
    if kind == "array" and node.items is not None:
        item = converter(node.items)
        return None if item is None else lambda value: [item(each) for each in value] if value else value
    if kind == "object":
        return _object_converter(node)
    return None


def _object_converter(node: Node) -> Converter | None:
    if node.additional is not None:
        inner = converter(node.additional)
        if inner is None:
            return None
        return lambda value: {key: inner(child) for key, child in value.items()} if value else value
    fields = {name: converter(child) for name, child in node.properties.items() if name != "metadata"}
    escapes = {name: escape(name) for name in node.properties if escape(name) != name}
    hides = node.preserves_unknown
    nullable = any(child.nullable for child in node.properties.values())
    if not hides and not escapes and not nullable and not any(fields.values()):
        return None
    known = node.properties.keys()

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        result = {}
        for key, child in value.items():
            if (hides and key not in known) or (child is None and key in known):
                continue
            inner = fields.get(key)
            result[escapes.get(key, key)] = child if inner is None else inner(child)
        return result

    return convert
