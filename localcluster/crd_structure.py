"""What a real API server refuses in a CRD's schema: everything that is not structural.

A schema is structural when every field's type stands on one spine of `properties`, `items` and
`additionalProperties`; what stands in allOf, anyOf, oneOf and not may only say more about the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from localcluster.field_errors import FieldError, Reason
from localcluster.patterns import problem_of
from localcluster.resource import JSON
from localcluster.schema_nodes import RESOURCE_FIELDS

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
_FORBIDDEN_WORDS = {
    "additionalProperties": "undefined",
    "default": "undefined",
    "nullable": "false",
    "x-kubernetes-embedded-resource": "false",
    "x-kubernetes-int-or-string": "false",
    "x-kubernetes-list-type": "undefined",
    "x-kubernetes-map-type": "undefined",
    "x-kubernetes-preserve-unknown-fields": "false",
}
"""What must be of these on no spine; of the others: empty."""
_KEY_PROPERTY = "this property is in x-kubernetes-list-map-keys, so it"
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


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
    for nested, where in _junctors(schema, path):
        yield from _check_complete(nested, where, schema, path)
    for name, child in (schema.get("properties") or {}).items():
        yield from check_structure(child, f"{path}.properties[{name}]", Level.FIELD)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from check_structure(
            schema["additionalProperties"], f"{path}.additionalProperties", Level.FIELD
        )
    if isinstance(schema.get("items"), dict):
        yield from check_structure(schema["items"], f"{path}.items", Level.ITEM)
    elif isinstance(schema.get("items"), list):
        yield _forbidden(f"{path}.items", "items must be a schema object and not an array")
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
    if level is Level.ROOT:
        yield from _check_root(schema, path)
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        where = f"{path}.x-kubernetes-preserve-unknown-fields"
        yield _invalid(where, False, "must be true or undefined")
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


def _check_root(schema: JSON, path: str) -> Iterator[FieldError]:
    if "default" in schema:
        yield _forbidden(f"{path}.default", "must not be set at the root")
    if schema.get("nullable"):
        yield _forbidden(f"{path}.nullable", "nullable cannot be true at the root")
    for name in RESOURCE_FIELDS:
        said = (schema.get("properties") or {}).get(name) or {}
        yield from _check_no_defaults(
            said, f"{path}.properties[{name}]", f"must not be set in top-level {name}"
        )


def _check_no_defaults(schema: JSON, path: str, detail: str) -> Iterator[FieldError]:
    if schema.get("default") is not None:
        yield _forbidden(f"{path}.default", detail)
    for name, child in (schema.get("properties") or {}).items():
        yield from _check_no_defaults(child, f"{path}.properties[{name}]", detail)


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
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None:
        yield from _wants_type(schema, path, "object", "x-kubernetes-map-type")
        if map_type not in ("atomic", "granular"):
            detail = 'supported values: "atomic", "granular"'
            yield FieldError(f"{path}.x-kubernetes-map-type", Reason.NOT_SUPPORTED, map_type, detail)
    keys = schema.get("x-kubernetes-list-map-keys") or []
    if keys and list_type != "map":
        where, detail = (
            f"{path}.x-kubernetes-list-type",
            "must be map if x-kubernetes-list-map-keys is non-empty",
        )
        yield _required(where, detail) if list_type is None else _invalid(where, list_type, detail)
    if list_type is None:
        return
    yield from _wants_type(schema, path, "array", "x-kubernetes-list-type")
    if list_type not in ("atomic", "set", "map"):
        detail = 'supported values: "atomic", "set", "map"'
        yield FieldError(f"{path}.x-kubernetes-list-type", Reason.NOT_SUPPORTED, list_type, detail)
    items = schema.get("items")
    if schema.get("type") != "array" or not isinstance(items, dict) or list_type not in ("set", "map"):
        return
    if items.get("nullable"):
        detail = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield _forbidden(f"{path}.items.nullable", detail)
    yield from _check_set(items, path) if list_type == "set" else _check_list_map(items, keys, path)


def _wants_type(schema: JSON, path: str, wanted: str, why: str) -> Iterator[FieldError]:
    detail, kind = f"must be {wanted} if {why} is specified", schema.get("type")
    if kind != wanted:
        yield _invalid(f"{path}.type", kind, detail) if kind else _required(f"{path}.type", detail)


def _check_set(items: JSON, path: str) -> Iterator[FieldError]:
    """Items must be equal or not as a whole."""
    attribute = {"array": "x-kubernetes-list-type", "object": "x-kubernetes-map-type"}.get(
        items.get("type", "")
    )
    if attribute is None:
        return
    implied = "atomic" if items["type"] == "array" else None
    if items.get(attribute, implied) != "atomic":
        detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
        yield _invalid(f"{path}.items.{attribute}", items.get(attribute, "null"), detail)


def _check_list_map(items: JSON, keys: list[str], path: str) -> Iterator[FieldError]:
    where_keys = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield _required(where_keys, "must not be empty if x-kubernetes-list-type is map")
    if items.get("type") != "object":
        detail = "must be object if parent array's x-kubernetes-list-type is map"
        yield _invalid(f"{path}.items.type", items.get("type", ""), detail)
        return
    properties = items.get("properties") or {}
    if len(set(keys)) < len(keys):
        yield _invalid(where_keys, keys, "must not contain duplicate entries")
    for key in keys:
        where = f"{path}.items.properties[{key}]"
        if key not in properties:
            yield _invalid(where_keys, keys, "entries must all be names of item properties")
            continue
        if properties[key].get("type") in ("array", "object"):
            detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield _invalid(f"{where}.type", items["type"], detail)
        if key not in (items.get("required") or []) and properties[key].get("default") is None:
            yield _required(
                f"{where}.default", f"{_KEY_PROPERTY} must have a default or be a required property"
            )
        if properties[key].get("nullable"):
            yield _forbidden(f"{where}.nullable", f"{_KEY_PROPERTY} cannot be nullable")


def _check_metadata(schema: JSON, path: str, level: Level) -> Iterator[FieldError]:
    """Check the implied metadata, of which only the names may be restricted."""
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
    attributes = set(metadata) - {"type", "properties", "default"}
    if level is Level.ROOT and (attributes or not fields <= {"name", "generateName"}):
        detail = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        yield _forbidden(where, detail)


def _check_values(schema: JSON, path: str) -> Iterator[FieldError]:
    """The pattern, and what stands in junctors."""
    pattern = schema.get("pattern")
    if pattern and (problem := problem_of(pattern)):
        detail = f"must be a valid regular expression, but isn't: {problem}"
        yield _invalid(f"{path}.pattern", pattern, detail)
    is_int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    for junctor in _JUNCTORS:
        for index, nested in enumerate(schema.get(junctor) or ()):
            if junctor == "anyOf" and is_int_or_string and schema["anyOf"] == _INT_OR_STRING:
                continue
            where = f"{path}.{junctor}[{index}]"
            yield from _check_nested(nested, where, is_int_or_string=is_int_or_string)
    if isinstance(schema.get("not"), dict):
        yield from _check_nested(schema["not"], f"{path}.not", is_int_or_string=False)


def _junctors(schema: JSON, path: str) -> Iterator[tuple[JSON, str]]:
    """What stands in allOf, anyOf, oneOf and not, with its path."""
    for junctor in _JUNCTORS:
        for index, nested in enumerate(schema.get(junctor) or ()):
            yield nested, f"{path}.{junctor}[{index}]"
    if isinstance(schema.get("not"), dict):
        yield schema["not"], f"{path}.not"


def _check_complete(nested: JSON, path: str, spine: JSON, spine_path: str) -> Iterator[FieldError]:
    """Every field that a junctor speaks of must be on the spine."""
    for inner, where in _junctors(nested, path):
        yield from _check_complete(inner, where, spine, spine_path)
    for name, child in (nested.get("properties") or {}).items():
        where, beside = f"{path}.properties[{name}]", f"{spine_path}.properties[{name}]"
        known = (spine.get("properties") or {}).get(name)
        if known is None:
            yield _required(beside, f"because it is defined in {where}")
        else:
            yield from _check_complete(child, where, known, beside)
    if isinstance(nested.get("items"), dict):
        known = spine.get("items")
        if not isinstance(known, dict):
            yield _required(f"{spine_path}.items", f"because it is defined in {path}.items")
        else:
            yield from _check_complete(nested["items"], f"{path}.items", known, f"{spine_path}.items")


def _check_nested(schema: JSON, path: str, *, is_int_or_string: bool) -> Iterator[FieldError]:
    if is_int_or_string and schema.get("anyOf") == _INT_OR_STRING:
        return
    for attribute in _ONLY_ON_SPINE:
        if schema.get(attribute):
            words = _FORBIDDEN_WORDS.get(attribute, "empty")
            yield _forbidden(f"{path}.{attribute}", f"must be {words} to be structural")
    yield from _check_values(schema, path)
    for name, child in (schema.get("properties") or {}).items():
        if name == "metadata":
            yield _forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")
        yield from _check_nested(child, f"{path}.properties[{name}]", is_int_or_string=False)
    if isinstance(schema.get("items"), dict):
        yield from _check_nested(schema["items"], f"{path}.items", is_int_or_string=False)
