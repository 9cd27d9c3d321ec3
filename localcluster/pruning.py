"""Pruning and defaulting: what happens to an object by its schema before anybody judges it.

Objects are never changed in place: results share every part that stays as it is, and parts that are the
very same as in the stored object are not looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcluster.field_errors import MapKey, Segment
from localcluster.json_text import dumps, loads
from localcluster.resource import JSON
from localcluster.schema_nodes import Node

UnknownField = list[Segment]
"""From the field up to the root, while it is being found."""
Pruner = Callable[[Any, Any, list[UnknownField]], Any]
"""From a value, its old state and the list of unknown fields to the value without them."""
Defaulter = Callable[[Any, Any], Any]


def _keep(value: Any, old: Any, unknown: list[UnknownField]) -> Any:
    return value


class PruningCompiler:
    """Makes the pruners of a graph of nodes, one a node."""

    def __init__(self) -> None:
        self._pruners: dict[Node, Pruner] = {}

    def pruner(self, node: Node) -> Pruner:
        if node not in self._pruners:
            self._pruners[node] = lambda value, old, unknown: self._pruners[node](value, old, unknown)
            self._pruners[node] = self._compile(node)
        return self._pruners[node]

    def _compile(self, node: Node) -> Pruner:
        if node.items is not None:
            return _list_pruner(self.pruner(node.items))
        is_object = node.properties or node.additional is not None or node.schema.get("type") == "object"
        if not is_object or (node.preserves_unknown and not node.properties and node.additional is None):
            return _keep
        children = {name: self.pruner(child) for name, child in node.properties.items()}
        if node.additional is not None:
            return _object_pruner(children, self.pruner(node.additional), is_map=True)
        return _object_pruner(children, _keep if node.preserves_unknown else None, is_map=False)


def _list_pruner(item: Pruner) -> Pruner:
    if item is _keep:
        return _keep

    def prune(value: Any, old: Any, unknown: list[UnknownField]) -> Any:
        if value is old or not isinstance(value, list):
            return value
        old_items = old if isinstance(old, list) else []
        result = []
        changed = False
        for index, child in enumerate(value):
            before = len(unknown)
            pruned = item(child, old_items[index] if index < len(old_items) else None, unknown)
            for path in unknown[before:]:
                path.append(index)
            changed = changed or pruned is not child
            result.append(pruned)
        return result if changed else value

    return prune


def _object_pruner(children: dict[str, Pruner], other: Pruner | None, *, is_map: bool) -> Pruner:
    """`other` prunes what no property names; None drops it."""

    def prune(value: Any, old: Any, unknown: list[UnknownField]) -> Any:
        if value is old or not isinstance(value, dict):
            return value
        old_fields: JSON = old if isinstance(old, dict) else {}
        changes: JSON = {}
        dropped: set[str] = set()
        for key, child in value.items():
            pruner = children.get(key, other)
            if pruner is _keep:
                continue
            if pruner is None:
                dropped.add(key)
                unknown.append([key])
                continue
            before = len(unknown)
            pruned = pruner(child, old_fields.get(key), unknown)
            for path in unknown[before:]:
                path.append(MapKey(key) if is_map and key not in children else key)
            if pruned is not child:
                changes[key] = pruned
        if not changes and not dropped:
            return value
        return {key: changes.get(key, child) for key, child in value.items() if key not in dropped}

    return prune


_SCALARS = (str, int, float, bool)


def _default_maker(default: Any) -> Callable[[], Any]:
    """Every object gets a default of its own."""
    if isinstance(default, _SCALARS):
        return lambda: default
    encoded = dumps(default)
    return lambda: loads(encoded)


class DefaultingCompiler:
    """Makes the defaulters of a graph of nodes; None where there is nothing to do below."""

    def __init__(self) -> None:
        self._defaulters: dict[Node, Defaulter | None] = {}

    def defaulter(self, node: Node) -> Defaulter | None:
        if node not in self._defaulters:
            self._defaulters[node] = lambda value, old: self._late(node, value, old)
            self._defaulters[node] = self._compile(node)
        return self._defaulters[node]

    def _late(self, node: Node, value: Any, old: Any) -> Any:
        defaulter = self._defaulters[node]
        return value if defaulter is None else defaulter(value, old)

    def _compile(self, node: Node) -> Defaulter | None:
        if node.schema.get("format") == "quantity":
            return _quantity_text
        if node.items is not None:
            item = self.defaulter(node.items)
            return None if item is None else _list_defaulter(item)
        if not node.properties and node.additional is None:
            return None
        children: dict[str, Defaulter] = {}
        for name, child in node.properties.items():
            if (defaulter := self.defaulter(child)) is not None:
                children[name] = defaulter
        makers = {
            name: _default_maker(self._complete(node.properties[name], default))
            for name, default in node.defaults.items()
        }
        other = None if node.additional is None else self.defaulter(node.additional)
        return _object_defaulter(node, children, other, makers)

    def _complete(self, node: Node, default: Any) -> Any:
        """A default with the defaults of its own fields."""
        defaulter = self.defaulter(node)
        return default if defaulter is None else defaulter(default, None)


def _quantity_text(value: Any, old: Any) -> Any:
    """Quantities may be written as numbers and are always read as strings."""
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return str(int(value)) if value.is_integer() else f"{round(value * 1000)}m"
    return value


def _list_defaulter(item: Defaulter) -> Defaulter:
    def apply(value: Any, old: Any) -> Any:
        if value is old or not isinstance(value, list):
            return value
        old_items = old if isinstance(old, list) else []
        result = [
            item(child, old_items[index] if index < len(old_items) else None)
            for index, child in enumerate(value)
        ]
        changed = any(new is not before for new, before in zip(result, value, strict=True))
        return result if changed else value

    return apply


def _object_defaulter(
    node: Node,
    children: dict[str, Defaulter],
    other: Defaulter | None,
    makers: dict[str, Callable[[], Any]],
) -> Defaulter:
    """Adds what is missing, and takes out nulls where null is no value."""
    keeps_null = frozenset(name for name, child in node.properties.items() if child.nullable)
    additional_keeps_null = node.preserves_unknown or (
        node.additional is not None and node.additional.nullable
    )
    declared = node.properties.keys()

    def apply(value: Any, old: Any) -> Any:
        if value is old or not isinstance(value, dict):
            return value
        old_fields: JSON = old if isinstance(old, dict) else {}
        changes: JSON = {}
        dropped: set[str] = set()
        for key, child in value.items():
            if child is None:
                keeps = key in keeps_null if key in declared else additional_keeps_null
                if not keeps:
                    dropped.add(key)
                continue
            defaulter = children.get(key) if key in declared else other
            if defaulter is not None:
                completed = defaulter(child, old_fields.get(key))
                if completed is not child:
                    changes[key] = completed
        result = value
        if changes or dropped:
            result = {key: changes.get(key, child) for key, child in value.items() if key not in dropped}
        for key, make in makers.items():
            if key not in result:
                if result is value:
                    result = dict(value)
                result[key] = make()
        return result

    return apply
