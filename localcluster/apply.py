"""Server-side apply: sets the fields that a manager names, and drops those that it no longer names.

This is what a manager sees of Kubernetes' who applies with force. `managedFields` lists managers who apply,
and nobody else; a field that several name is dropped with the last of them.
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from localcluster.resource import JSON
from localcluster.schema_nodes import Components, resolve

_NOT_OWNED = ("name", "namespace", "resourceVersion", "uid", "managedFields")
_ELEMENT = "."
"""The key that stands for an element of a list in fieldsV1, beside those of its fields."""


def server_side_apply(
    live: JSON, manifest: JSON, entry: JSON, schema: JSON, components: Components
) -> tuple[JSON, list[JSON]]:
    """Return the object after an apply, and its managedFields.

    Args:
        entry: the manager's entry in managedFields, without its fields.
    """
    entries = live["metadata"].get("managedFields") or []
    others = [each for each in entries if each["manager"] != entry["manager"]]
    (last,) = [each for each in entries if each not in others] or [{"fieldsV1": {}}]
    fields = _Fields(components)
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in _NOT_OWNED}
    rest = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind", "metadata")}
    named = fields.of({**rest, "metadata": metadata} if metadata else rest, schema)
    dropped = reduce(_without, [named, *(each["fieldsV1"] for each in others)], last["fieldsV1"])
    after = fields.remove(fields.merge(live, manifest, schema), dropped, schema)
    if named != last["fieldsV1"] or after != live:
        last = {**entry, "fieldsType": "FieldsV1", "fieldsV1": named}
    return after, [*others, last]


def _without(fields: JSON, taken: JSON) -> JSON:
    """Return the fields of one fieldsV1 that are not in another."""
    rest = {key: _without(inner, taken[key]) if key in taken else inner for key, inner in fields.items()}
    return {key: inner for key, inner in rest.items() if inner or key not in taken}


class _Fields:
    """Takes objects apart as their schema does."""

    def __init__(self, components: Components) -> None:
        self._components = components

    def of(self, value: Any, schema: JSON) -> JSON:
        """Return the fieldsV1 of a value; empty for one that is owned as a whole."""
        found = {}
        for key, (part, inner) in (self._parts(value, schema) or {}).items():
            found[key] = {_ELEMENT: {}} | self.of(part, inner) if key[0] == "k" else self.of(part, inner)
        return found

    def merge(self, live: Any, applied: Any, schema: JSON) -> Any:
        """Return the live value with what is applied."""
        theirs, ours = self._parts(live, schema), self._parts(applied, schema)
        if theirs is None or ours is None or type(live) is not type(applied):
            return applied
        merged = {
            key: self.merge(theirs[key][0], part, inner) if key in theirs else part
            for key, (part, inner) in ours.items()
        }
        all_parts = {key: part for key, (part, _) in theirs.items()} | merged
        return _whole(live, {key: all_parts[key] for key in _in_order(list(theirs), list(ours))})

    def remove(self, value: Any, fields: JSON, schema: JSON) -> Any:
        """Return the value without these fields."""
        parts = self._parts(value, schema) if fields else None
        if parts is None:
            return value
        kept = {
            key: self.remove(part, fields.get(key, {}), inner)
            for key, (part, inner) in parts.items()
            if key not in fields or (fields[key] and _ELEMENT not in fields[key])
        }
        return _whole(value, kept)

    def _parts(self, value: Any, schema: JSON) -> dict[str, tuple[Any, JSON]] | None:
        """Return the parts by their keys in fieldsV1, with their schemas; None if there are no such parts."""
        node = resolve(schema, self._components)
        if isinstance(value, dict):
            if "atomic" in (schema.get("x-kubernetes-map-type"), node.get("x-kubernetes-map-type")):
                return None
            known, further = node.get("properties") or {}, node.get("additionalProperties")
            further = further if isinstance(further, dict) else {}
            return {f"f:{key}": (part, known.get(key, further)) for key, part in value.items()}
        list_type, items = schema.get("x-kubernetes-list-type"), node.get("items") or {}
        if isinstance(value, list) and list_type == "set":
            return {f"v:{_text(part)}": (part, items) for part in value}
        if isinstance(value, list) and list_type == "map" and all(isinstance(part, dict) for part in value):
            fields = resolve(items, self._components)["properties"]
            defaults = {key: fields[key].get("default") for key in schema["x-kubernetes-list-map-keys"]}
            return {f"k:{_text(defaults | _only(part, defaults))}": (part, items) for part in value}
        return None


def _whole(value: Any, parts: dict[str, Any]) -> Any:
    """Put parts together to a value of the same type."""
    return {key[2:]: part for key, part in parts.items()} if isinstance(value, dict) else list(parts.values())


def _in_order(theirs: list[str], ours: list[str]) -> list[str]:
    """Return both lists' keys, ours in our order, and the others between them as they were."""
    places, ordered, taken = {key: place for place, key in enumerate(ours)}, list[str](), 0
    for key in theirs:
        if key not in places:
            ordered.append(key)
        elif places[key] >= taken:
            ordered += ours[taken : places[key] + 1]
            taken = places[key] + 1
    return ordered + ours[taken:]


def _only(part: JSON, keys: JSON) -> JSON:
    return {key: part[key] for key in keys if key in part}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
