"""The patch types of the Kubernetes API: JSON patch, JSON merge patch and strategic merge patch.

None of them changes its arguments: results share every part that the patch leaves alone, so that whoever
comes next (pruning, validation, storage) can tell by identity what did not change.
"""

from __future__ import annotations

from typing import Any

import jsonpatch

from localcluster.json_text import copied, dumps
from localcluster.resource import JSON
from localcluster.schema_nodes import Components, resolve

OPERATIONS_LIMIT = 10_000
COPIES_MAX_BYTES = 3 * 1024 * 1024


class PatchError(ValueError):
    """A patch that cannot be used; the message says why."""


class MalformedPatch(PatchError):
    """The body is not a patch of its type (the API answers 400)."""


class InapplicablePatch(PatchError):
    """The patch is well formed, but does not fit this object (the API answers 422)."""


def json_patch(obj: JSON, operations: Any) -> JSON:
    """Apply an RFC 6902 patch."""
    if not isinstance(operations, list):
        raise MalformedPatch("a JSON patch is a list of operations")
    if len(operations) > OPERATIONS_LIMIT:
        raise MalformedPatch(f"the allowed maximum operations in a JSON patch is {OPERATIONS_LIMIT}")
    try:
        patched = _applied(obj, operations)
    except (jsonpatch.InvalidJsonPatch, KeyError, AttributeError) as error:
        raise MalformedPatch(f"not a JSON patch: {error}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise InapplicablePatch(f"the JSON patch cannot be applied: {error}") from None
    if not isinstance(patched, dict):
        raise InapplicablePatch("the JSON patch does not leave an object")
    return patched


def _applied(obj: JSON, operations: list[Any]) -> Any:
    """The object after all operations. A few dozen copies of a part into itself would fill any memory."""
    copied_bytes = 0
    result: Any = copied(obj)
    jsonpatch.JsonPatch(operations)  # finds what is malformed before anything is applied
    for operation in operations:
        if operation["op"] == "copy":
            copied_bytes += len(dumps(jsonpatch.JsonPointer(operation["from"]).resolve(result)))
            if copied_bytes > COPIES_MAX_BYTES:
                raise InapplicablePatch(
                    f"the copies of the JSON patch are larger than {COPIES_MAX_BYTES} bytes"
                )
        result = jsonpatch.JsonPatch([operation]).apply(result, in_place=True)
    return result


def merge_patch(obj: JSON, patch: Any) -> JSON:
    """Apply an RFC 7396 patch."""
    if not isinstance(patch, dict):
        raise MalformedPatch("a merge patch of an object is an object")
    merged: JSON = _merge(obj, patch)
    return merged


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge(result.get(key), value)
        else:
            result[key] = value
    return target if isinstance(target, dict) and _same_values(result, target) else result


def _same_values(new: JSON, old: JSON) -> bool:
    """Whether a shallow copy still is what it was copied from."""
    return len(new) == len(old) and all(
        key in old and (value is old[key] or _equal_scalars(value, old[key])) for key, value in new.items()
    )


def _equal_scalars(left: Any, right: Any) -> bool:
    return type(left) is type(right) and not isinstance(left, (dict, list)) and bool(left == right)


_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ELEMENT_ORDER = "$setElementOrder/"
"""Left alone: what is new goes to the end of its list."""
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_MERGE_KEY = "x-kubernetes-patch-merge-key"
_STRATEGY = "x-kubernetes-patch-strategy"


def strategic_merge_patch(obj: JSON, patch: Any, schema: JSON, components: Components) -> JSON:
    """Apply a strategic merge patch, by the merge keys and strategies that the kind's schema names."""
    if not isinstance(patch, dict):
        raise MalformedPatch("a strategic merge patch of an object is an object")
    return _StrategicMerge(components).maps(obj, patch, schema)


class _StrategicMerge:
    """One application of a strategic merge patch; holds what every level needs."""

    def __init__(self, components: Components) -> None:
        self._components = components

    def maps(self, original: JSON, patch: JSON, schema: JSON | None) -> JSON:
        """Merge two objects of one type."""
        directive = patch.get(_DIRECTIVE)
        if directive == "replace":
            return {key: value for key, value in patch.items() if key != _DIRECTIVE}
        if directive == "delete":
            return {}
        if directive not in (None, "merge"):
            raise MalformedPatch(f"unknown $patch directive {directive!r}")
        result = dict(original)
        self._retain_keys(result, patch)
        self._delete_primitives(result, patch)
        for key, value in patch.items():
            if not _is_directive(key):
                self._merge_field(result, key, value, self._field_schema(schema, key))
        return original if _same_values(result, original) else result

    def _field_schema(self, schema: JSON | None, key: str) -> JSON | None:
        if schema is None:
            return None
        node = resolve(schema, self._components)
        found = (node.get("properties") or {}).get(key, node.get("additionalProperties"))
        return found if isinstance(found, dict) else None

    def _merge_field(self, result: JSON, key: str, value: Any, schema: JSON | None) -> None:
        if value is None:
            result.pop(key, None)
            return
        present = result.get(key)
        strategies = _strategies(schema)
        if isinstance(value, dict):
            base = present if isinstance(present, dict) and "replace" not in strategies else {}
            result[key] = self.maps(base, value, schema)
        elif isinstance(value, list) and "merge" in strategies:
            base_list = present if isinstance(present, list) else []
            result[key] = self._lists(base_list, value, schema)
        else:
            result[key] = value

    def _lists(self, original: list[Any], patch: list[Any], schema: JSON | None) -> list[Any]:
        merge_key = self._merge_key(schema)
        if merge_key is None:
            if any(isinstance(item, (dict, list)) for item in patch):
                raise MalformedPatch("a list that is merged by its values has scalars alone")
            return list(dict.fromkeys([*original, *patch]))
        if any(not isinstance(item, dict) for item in patch):
            raise InapplicablePatch(f"the elements of a list merged by {merge_key!r} must be objects")
        elements = [item for item in patch if item.get(_DIRECTIVE) in (None, "merge")]
        if any(item.get(_DIRECTIVE) == "replace" for item in patch):
            return elements
        deleted = _positions([item for item in patch if item.get(_DIRECTIVE) == "delete"], merge_key)
        item_schema = (schema or {}).get("items")
        merged = [item for item in original if _identity(item, merge_key) not in deleted]
        places = _positions(merged, merge_key)
        for element in elements:
            if merge_key not in element:
                raise InapplicablePatch(f"map: {element} does not contain declared merge key: {merge_key}")
            position = places.setdefault(_identity(element, merge_key), len(merged))
            if position == len(merged):
                merged.append(self.maps({}, element, item_schema))
            else:
                merged[position] = self.maps(merged[position], element, item_schema)
        return merged

    @staticmethod
    def _merge_key(schema: JSON | None) -> str | None:
        return (schema or {}).get(_MERGE_KEY)

    @staticmethod
    def _retain_keys(result: JSON, patch: JSON) -> None:
        retained = patch.get(_RETAIN_KEYS)
        if retained is None:
            return
        if not isinstance(retained, list):
            raise MalformedPatch("$retainKeys must be a list of keys")
        for key in [key for key in result if key not in retained]:
            del result[key]

    @staticmethod
    def _delete_primitives(result: JSON, patch: JSON) -> None:
        for key, removed in patch.items():
            if key.startswith(_DELETE_PRIMITIVES):
                field = key.removeprefix(_DELETE_PRIMITIVES)
                if not isinstance(removed, list):
                    raise MalformedPatch(f"{key} must be a list")
                if isinstance(result.get(field), list):
                    result[field] = [item for item in result[field] if item not in removed]


def _is_directive(key: str) -> bool:
    return key in (_DIRECTIVE, _RETAIN_KEYS) or key.startswith((_ELEMENT_ORDER, _DELETE_PRIMITIVES))


def _strategies(schema: JSON | None) -> list[str]:
    return str((schema or {}).get(_STRATEGY, "")).split(",")


def _identity(item: Any, merge_key: str | None) -> Any:
    """Return the identity of a list's element: the value of its merge key; of a scalar, itself."""
    value = item.get(merge_key) if merge_key is not None and isinstance(item, dict) else item
    return dumps(value) if isinstance(value, (dict, list)) else value


def _positions(items: list[Any], merge_key: str | None) -> dict[Any, int]:
    """The position of each element; the first, of those that are alike."""
    found: dict[Any, int] = {}
    for position, item in enumerate(items):
        found.setdefault(_identity(item, merge_key), position)
    return found
