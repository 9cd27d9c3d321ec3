"""Server-side apply: who owns which field of an object, and what an apply or another write makes of that.

https://kubernetes.io/docs/reference/using-api/server-side-apply/. An object is tracked from its first apply
on; what it has by then belongs to the manager `before-first-apply`, as it does in Kubernetes where an object
is older than its managedFields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from localcluster.field_sets import difference, intersection, node, paths, union
from localcluster.resource import JSON
from localcluster.schema_nodes import Components, resolve

BEFORE_FIRST_APPLY = "before-first-apply"
_NOT_OWNED = (
    *("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation"),
    *("managedFields", "resourceVersion"),
)


@dataclass(frozen=True)
class Writer:
    """The author of a write, and what it writes to."""

    manager: str
    api_version: str
    subresource: str = ""
    separate_status: bool = False
    """The kind has its status as a subresource, so that no other write reaches it."""

    def entry(self, operation: str, fields: JSON, time: str) -> JSON:
        """Return the writer's entry in managedFields."""
        entry = {
            "manager": self.manager,
            "operation": operation,
            "apiVersion": self.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        return entry | ({"subresource": self.subresource} if self.subresource else {})

    def owns(self, entry: JSON, operation: str) -> bool:
        """Whether an entry in managedFields is the one of this writer's writes of that sort."""
        same_version = operation == "Apply" or entry["apiVersion"] == self.api_version
        place = (entry["manager"], entry["operation"], entry.get("subresource", ""))
        return same_version and place == (self.manager, operation, self.subresource)

    def reach(self, fields: JSON) -> JSON:
        """Return the fields that can be owned by way of this write."""
        kept = {key: inner for key, inner in fields.items() if key not in ("f:apiVersion", "f:kind")}
        if self.subresource == "status":
            return {key: inner for key, inner in kept.items() if key == "f:status"}
        if self.separate_status:
            kept.pop("f:status", None)
        metadata = kept.pop("f:metadata", {})
        metadata = {key: inner for key, inner in metadata.items() if key[2:] not in _NOT_OWNED and key != "."}
        return {**kept, "f:metadata": metadata} if metadata else kept


class ApplyConflict(Exception):
    """Other managers own fields that an apply would change."""

    def __init__(self, conflicts: Sequence[tuple[JSON, JSON]]) -> None:
        found = [(_named(entry), path) for entry, fields in conflicts for path in paths(fields)]
        self.causes = [(f"conflict with {name}", path) for name, path in found]
        if len(found) == 1:
            why = f"Apply failed with 1 conflict: {self.causes[0][0]}: {found[0][1]}"
        else:
            lines = []
            for each in sorted({name for name, _ in found}):
                lines += [f"conflicts with {each}:", *(f"- {path}" for name, path in found if name == each)]
            why = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
        super().__init__(why)


def server_side_apply(
    live: JSON,
    manifest: JSON,
    writer: Writer,
    time: str,
    schema: JSON,
    components: Components,
    *,
    force: bool,
) -> tuple[JSON, list[JSON]]:
    """Return the object after an apply, and its managedFields.

    Raises:
        ApplyConflict: others own what would change, and `force` does not take it from them.
    """
    kind = _Kind(components)
    entries: list[JSON] = live["metadata"].get("managedFields") or []
    if not entries and live.keys() - {"metadata"}:
        earlier = Writer(BEFORE_FIRST_APPLY, writer.api_version, "", writer.separate_status)
        fields = earlier.reach(kind.compare({}, live, schema).changed)
        entries = [earlier.entry("Update", fields, time)] if fields else []
    mine = [entry for entry in entries if writer.owns(entry, "Apply")]
    others = [entry for entry in entries if not writer.owns(entry, "Apply")]
    fields = writer.reach(kind.fields(manifest, schema))
    last = mine[0]["fieldsV1"] if mine else {}
    kept = reduce(union, (entry["fieldsV1"] for entry in others), fields)
    after = kind.remove(kind.merge(live, manifest, schema), last, kept, schema)
    change = kind.compare(live, after, schema)
    conflicts = [
        (entry, common) for entry in others if (common := intersection(entry["fieldsV1"], change.changed))
    ]
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    if mine and mine[0]["apiVersion"] == writer.api_version and fields == last and not change:
        return after, entries
    entry = [writer.entry("Apply", fields, time)] if fields else []
    return after, [*_without(others, union(change.changed, change.removed)), *entry]


def after_update(
    old: JSON, new: JSON, entries: list[JSON], writer: Writer, time: str, schema: JSON, components: Components
) -> list[JSON]:
    """Return the managedFields of an object after a write that is no apply."""
    change = _Kind(components).compare(old, new, schema)
    changed, removed = writer.reach(change.changed), writer.reach(change.removed)
    if not changed and not removed:
        return entries
    mine = [entry for entry in entries if writer.owns(entry, "Update")]
    others = [entry for entry in entries if not writer.owns(entry, "Update")]
    fields = union(difference(mine[0]["fieldsV1"] if mine else {}, removed), changed)
    entry = [writer.entry("Update", fields, time)] if fields else []
    return [*_without(others, union(changed, removed)), *entry]


def _without(entries: Sequence[JSON], fields: JSON) -> list[JSON]:
    """Return the entries without these fields; those that have no more are left out."""
    rest = [entry | {"fieldsV1": difference(entry["fieldsV1"], fields)} for entry in entries]
    return [entry for entry in rest if entry["fieldsV1"]]


def _named(entry: JSON) -> str:
    """Name a manager as Kubernetes does in its messages."""
    name = json.dumps(entry["manager"])
    if entry.get("subresource"):
        name += f" with subresource {json.dumps(entry['subresource'])}"
    return f"{name} using {entry['apiVersion']}" if entry["operation"] == "Update" else name


class _Part(NamedTuple):
    """A part of a value, which has an owner of its own."""

    value: Any
    schema: JSON
    declared: bool
    """It is a field that the kind declares, and no key of a map nor an element of a list."""


class _Change(NamedTuple):
    """Difference between two values."""

    changed: JSON
    """Fields that are new, or have another value."""
    removed: JSON

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


class _Kind:
    """Takes objects apart as their schema does."""

    def __init__(self, components: Components) -> None:
        self._components = components

    def fields(self, value: Any, schema: JSON) -> JSON:
        """Return the fields that a manifest names."""
        found = {}
        for key, part in (self._parts(value, schema) or {}).items():
            children = self.fields(part.value, part.schema)
            whole = self._parts(part.value, part.schema) is None or part.value == {}
            if (inner := node(children, member=whole or not part.declared)) is not None:
                found[key] = inner
        return found

    def merge(self, live: Any, applied: Any, schema: JSON) -> Any:
        """Return the live value with what is applied."""
        theirs, ours = self._parts(live, schema), self._parts(applied, schema)
        if theirs is None or ours is None or type(live) is not type(applied):
            return applied
        merged = {
            key: self.merge(theirs[key].value, part.value, part.schema) if key in theirs else part.value
            for key, part in ours.items()
        }
        all_parts = {key: part.value for key, part in theirs.items()} | merged
        return _whole(live, {key: all_parts[key] for key in _in_order(list(theirs), list(ours))})

    def remove(self, value: Any, last: JSON, kept: JSON, schema: JSON) -> Any:
        """Return the value without the fields that were applied last and have no owner any more.

        The fields below such a field go with it, unless they have an owner.
        """
        parts = self._parts(value, schema) if last else None
        if parts is None:
            return value
        left = {
            key: self.remove(part.value, last[key], kept[key], part.schema) if key in last else part.value
            for key, part in parts.items()
            if key not in last or key in kept
        }
        return _whole(value, left)

    def compare(self, old: Any, new: Any, schema: JSON) -> _Change:
        """Return what differs below two values that have parts."""
        changed, removed = dict[str, JSON](), dict[str, JSON]()
        theirs, ours = self._parts(old, schema) or {}, self._parts(new, schema) or {}
        for key in {**theirs, **ours}:
            if key not in ours:
                removed[key] = self._all(theirs[key])
            elif key not in theirs:
                changed[key] = self._all(ours[key])
            elif theirs[key].value != ours[key].value:
                before, after = theirs[key], ours[key]
                if None in (self._parts(before.value, before.schema), self._parts(after.value, after.schema)):
                    changed[key] = {}
                    continue
                inner = self.compare(before.value, after.value, after.schema)
                changed |= {key: inner.changed} if inner.changed else {}
                removed |= {key: inner.removed} if inner.removed else {}
        return _Change(changed, removed)

    def _all(self, part: _Part) -> JSON:
        """Return the tree of a part in which it and everything below it is a member."""
        parts = self._parts(part.value, part.schema) or {}
        return node({key: self._all(inner) for key, inner in parts.items()}, member=True) or {}

    def _parts(self, value: Any, schema: JSON) -> dict[str, _Part] | None:
        """Return the parts by their keys in fieldsV1; None for a value that is owned as a whole."""
        declared = resolve(schema, self._components)
        if isinstance(value, dict):
            if "atomic" in (schema.get("x-kubernetes-map-type"), declared.get("x-kubernetes-map-type")):
                return None
            properties, further = declared.get("properties") or {}, declared.get("additionalProperties")
            further = further if isinstance(further, dict) else {}
            return {
                f"f:{key}": _Part(part, properties.get(key, further), key in properties)
                for key, part in value.items()
            }
        list_type, items = schema.get("x-kubernetes-list-type"), declared.get("items") or {}
        if isinstance(value, list) and list_type == "set":
            return {f"v:{_text(part)}": _Part(part, items, False) for part in value}
        if isinstance(value, list) and list_type == "map" and all(isinstance(part, dict) for part in value):
            properties = resolve(items, self._components)["properties"]
            defaults = {key: properties[key].get("default") for key in schema["x-kubernetes-list-map-keys"]}
            return {
                f"k:{_text(defaults | _only(part, defaults))}": _Part(part, items, False) for part in value
            }
        return None


def _whole(value: Any, parts: Mapping[str, Any]) -> Any:
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
