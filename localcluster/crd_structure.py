"""What a real API server refuses in a CRD's schema: everything that is not structural.

A schema is structural when every field's type stands on one spine of `properties`, `items` and
`additionalProperties`; what stands in allOf, anyOf, oneOf and not may only say more about the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from localcluster.field_errors import FieldError, Reason
from localcluster.resource import JSON

TYPES = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED = (
    "$ref",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "id",
    "$schema",
)
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_ONLY_ON_SPINE = (
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
)
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_NOT_IN_GO = re.compile(r"\(\?(?:=|!|<=|<!)|\\[1-9]")


class Level(Enum):
    ROOT = "must not be empty at the root"
    ITEM = "must not be empty for specified array items"
    FIELD = "must not be empty for specified object fields"


def _forbidden(path: str, detail: str) -> FieldError:
    return FieldError(path, Reason.FORBIDDEN, "", detail)


def _required(path: str, detail: str) -> FieldError:
    return FieldError(path, Reason.REQUIRED, "", detail)


def _invalid(path: str, value: object, detail: str) -> FieldError:
    return FieldError(path, Reason.INVALID, value, detail)


def check_structure(schema: JSON, path: str, level: Level = Level.ROOT) -> Iterator[FieldError]:
    """Everything about a schema and the schemas in it that is not structural."""
    yield from _check_type(schema, path, level)
    yield from _check_attributes(schema, path, level)
    yield from _check_list_type(schema, path)
    yield from _check_metadata(schema, path, level)
    yield from _check_values(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        yield from check_structure(child, f"{path}.properties[{name}]", Level.FIELD)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from check_structure(
            schema["additionalProperties"], f"{path}.additionalProperties", Level.FIELD
        )
    if isinstance(schema.get("items"), dict):
        yield from check_structure(schema["items"], f"{path}.items", Level.ITEM)
    elif schema.get("type") == "array":
        yield _required(f"{path}.items", "must be specified")


def _check_type(schema: JSON, path: str, level: Level) -> Iterator[FieldError]:
    kind = schema.get("type")
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not kind:
        if schema.get("x-kubernetes-embedded-resource"):
            yield _required(f"{path}.type", "must be object if x-kubernetes-embedded-resource is true")
        elif not free or level is Level.ROOT:
            yield _required(f"{path}.type", level.value)
    elif kind not in TYPES:
        detail = "supported values: " + ", ".join(f'"{each}"' for each in TYPES)
        yield FieldError(f"{path}.type", Reason.NOT_SUPPORTED, kind, detail)
    elif level is Level.ROOT and kind != "object":
        yield _invalid(f"{path}.type", kind, "must be object at the root")
    elif schema.get("x-kubernetes-int-or-string"):
        yield _invalid(f"{path}.type", kind, "must be empty if x-kubernetes-int-or-string is true")
    elif schema.get("x-kubernetes-embedded-resource") and kind != "object":
        yield _invalid(f"{path}.type", kind, "must be object if x-kubernetes-embedded-resource is true")


def _check_attributes(schema: JSON, path: str, level: Level) -> Iterator[FieldError]:
    for attribute in _UNSUPPORTED:
        if attribute in schema:
            yield _forbidden(f"{path}.{attribute}", f"{attribute} is not supported")
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield _forbidden(f"{path}.uniqueItems", detail)
    yield from _check_additional(schema, path, level)
    if level is Level.ROOT and "default" in schema:
        yield _forbidden(f"{path}.default", "must not be set at the root")
    if schema.get("x-kubernetes-int-or-string"):
        for attribute in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(attribute):
                yield _invalid(
                    f"{path}.{attribute}", True, "must be false if x-kubernetes-int-or-string is true"
                )
    is_bare = not schema.get("x-kubernetes-preserve-unknown-fields") and not schema.get("properties")
    if schema.get("x-kubernetes-embedded-resource") and is_bare:
        detail = (
            "must not be empty if x-kubernetes-embedded-resource is true without "
            "x-kubernetes-preserve-unknown-fields"
        )
        yield _required(f"{path}.properties", detail)


def _check_additional(schema: JSON, path: str, level: Level) -> Iterator[FieldError]:
    if "additionalProperties" not in schema:
        return
    where = f"{path}.additionalProperties"
    if schema["additionalProperties"] is False:
        yield _forbidden(where, "additionalProperties cannot be set to false")
    if schema.get("properties"):
        yield _forbidden(where, "additionalProperties and properties are mutual exclusive")
    if level is Level.ROOT:
        yield _forbidden(where, "must not be used at the root")
    if schema.get("x-kubernetes-embedded-resource"):
        yield _forbidden(where, "must not be used if x-kubernetes-embedded-resource is set")


def _check_list_type(schema: JSON, path: str) -> Iterator[FieldError]:
    list_type = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys") or []
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None:
        if map_type not in ("atomic", "granular"):
            detail = 'supported values: "atomic", "granular"'
            yield FieldError(f"{path}.x-kubernetes-map-type", Reason.NOT_SUPPORTED, map_type, detail)
        if schema.get("type") != "object":
            detail = "must be object if x-kubernetes-map-type is specified"
            yield _invalid(f"{path}.type", schema.get("type", ""), detail)
    if keys and list_type != "map":
        detail = "must be map if x-kubernetes-list-map-keys is non-empty"
        yield _invalid(f"{path}.x-kubernetes-list-type", list_type, detail)
    if list_type is None:
        return
    if list_type not in ("atomic", "set", "map"):
        detail = 'supported values: "atomic", "map", "set"'
        yield FieldError(f"{path}.x-kubernetes-list-type", Reason.NOT_SUPPORTED, list_type, detail)
    if schema.get("type") != "array":
        detail = "must be array if x-kubernetes-list-type is specified"
        yield _invalid(f"{path}.type", schema.get("type", ""), detail)
        return
    items = schema.get("items") or {}
    if list_type == "set":
        yield from _check_set(items, path)
    if list_type == "map":
        yield from _check_list_map(items, keys, path)


def _check_set(items: JSON, path: str) -> Iterator[FieldError]:
    is_atomic = {
        "array": items.get("x-kubernetes-list-type", "atomic") == "atomic",
        "object": items.get("x-kubernetes-map-type") == "atomic",
    }.get(items.get("type", ""), True)
    if not is_atomic:
        yield _forbidden(f"{path}.items", "items of a set must be atomic")
    if items.get("nullable"):
        yield _forbidden(f"{path}.items.nullable", "cannot be nullable when x-kubernetes-list-type is set")


def _check_list_map(items: JSON, keys: list[str], path: str) -> Iterator[FieldError]:
    if not keys:
        detail = "must not be empty if x-kubernetes-list-type is map"
        yield _required(f"{path}.x-kubernetes-list-map-keys", detail)
    if items.get("type") != "object":
        detail = "must be object if parent array's x-kubernetes-list-type is map"
        yield _invalid(f"{path}.items.type", items.get("type", ""), detail)
        return
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        where = f"{path}.items.properties[{key}]"
        if key not in properties:
            detail = "entries must all be names of item properties"
            yield _invalid(f"{path}.x-kubernetes-list-map-keys[{index}]", key, detail)
            continue
        if properties[key].get("type") in ("array", "object"):
            yield _invalid(f"{where}.type", properties[key]["type"], "must be a scalar type")
        if key not in (items.get("required") or []) and "default" not in properties[key]:
            detail = (
                "this property is in x-kubernetes-list-map-keys, "
                "so it must have a default or be a required property"
            )
            yield _required(f"{where}.default", detail)


def _check_metadata(schema: JSON, path: str, level: Level) -> Iterator[FieldError]:
    """Of the implied metadata only the names may be restricted."""
    is_resource = level is Level.ROOT or schema.get("x-kubernetes-embedded-resource")
    properties = schema.get("properties") or {}
    if not is_resource:
        return
    for name in ("apiVersion", "kind"):
        if name in properties and properties[name].get("type") != "string":
            where = f"{path}.properties[{name}].type"
            yield _invalid(where, properties[name].get("type", ""), "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    where = f"{path}.properties[metadata]"
    if metadata.get("type") != "object":
        yield _invalid(f"{where}.type", metadata.get("type", ""), "must be object")
    fields = set(metadata.get("properties") or ())
    attributes = set(metadata) - {"type", "properties", "description"}
    if level is Level.ROOT and (attributes or not fields <= {"name", "generateName"}):
        detail = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        yield _forbidden(where, detail)


def _check_values(schema: JSON, path: str) -> Iterator[FieldError]:
    """The pattern, and what stands in junctors."""
    pattern = schema.get("pattern")
    if pattern and (problem := _pattern_problem(pattern)):
        detail = f"must be a valid regular expression, but isn't: {problem}"
        yield _invalid(f"{path}.pattern", pattern, detail)
    is_int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    for junctor in _JUNCTORS:
        for index, nested in enumerate(schema.get(junctor) or ()):
            if junctor == "anyOf" and is_int_or_string and schema["anyOf"] == _INT_OR_STRING:
                continue
            yield from _check_nested(nested, f"{path}.{junctor}[{index}]", is_int_or_string=is_int_or_string)
    if isinstance(schema.get("not"), dict):
        yield from _check_nested(schema["not"], f"{path}.not", is_int_or_string=False)


def _pattern_problem(pattern: str) -> str | None:
    if found := _NOT_IN_GO.search(pattern):
        return f"error parsing regexp: invalid or unsupported Perl syntax: `{found[0]}`"
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return None


def _check_nested(schema: JSON, path: str, *, is_int_or_string: bool) -> Iterator[FieldError]:
    if is_int_or_string and schema.get("anyOf") == _INT_OR_STRING:
        return
    for attribute in _ONLY_ON_SPINE:
        if schema.get(attribute):
            words = "undefined" if attribute in ("default", "additionalProperties") else "empty"
            yield _forbidden(f"{path}.{attribute}", f"must be {words} to be structural")
    yield from _check_values(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        if name == "metadata":
            yield _forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")
        yield from _check_nested(child, f"{path}.properties[{name}]", is_int_or_string=False)
    if isinstance(schema.get("items"), dict):
        yield from _check_nested(schema["items"], f"{path}.items", is_int_or_string=False)
