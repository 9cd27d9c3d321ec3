"""Structural OpenAPI v3 schemas for CRDs, from pydantic models.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from crds.wire import OnWire, to_camel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
)


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the model's schema without `$ref`, `anyOf`, titles or nulls, with a `type` on every node.

    Raises:
        TypeError: a structural schema cannot express the model, for example a union of types.
    """
    source = model.model_json_schema(by_alias=True)
    _describe(source.get("$defs", {}))
    schema = _node(source, source.get("$defs", {}), at=model.__name__)
    schema["properties"]["metadata"] = {"type": "object"}
    schema["required"] = ["spec"]
    # A required field has no default, which would have to satisfy the rules of its own level.
    schema["properties"]["spec"].pop("default", None)
    return schema


def _describe(definitions: dict[str, Schema]) -> None:
    """Add the docstrings of the fields of `OnWire` classes, which pydantic would otherwise parse at each
    import."""
    kinds = {each.__name__: each for each in _subclasses(OnWire)}
    for name in definitions.keys() & kinds.keys():
        for base in (each for each in kinds[name].__mro__ if issubclass(each, OnWire)):
            for field, text in _docstrings(base):
                definitions[name]["properties"][to_camel(field)].setdefault("description", text)


def _subclasses(kind: type[OnWire]) -> Iterator[type[OnWire]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield ast.unparse(field.target), inspect.cleandoc(ast.literal_eval(text.value))


def _node(source: Schema, definitions: dict[str, Schema], at: str) -> Schema:
    source = _resolve(source, definitions, at)
    if source.get("x-kubernetes-int-or-string"):
        limits = {key: source[key] for key in ("pattern", "maxLength") if key in source}
        return {"x-kubernetes-int-or-string": True} | limits | _described(source)
    result: Schema = {key: source[key] for key in _KEPT if key in source}
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in source:
            # Kubernetes keeps OpenAPI 3.0's boolean form.
            result[bound.lower()] = source[f"exclusive{bound}"]
            result[f"exclusive{bound}"] = True
    result |= {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}
    if source.get("default") not in (None, [], {}):
        result["default"] = source["default"]
    if "properties" in source:
        result["properties"] = {
            name: _verbatim(value) if _is_verbatim(value) else _node(value, definitions, f"{at}.{name}")
            for name, value in source["properties"].items()
        }
    elif isinstance(source.get("additionalProperties"), dict):
        result["additionalProperties"] = _node(source["additionalProperties"], definitions, f"{at}[]")
    if "items" in source:
        result["items"] = _node(source["items"], definitions, f"{at}[]")
    if "type" not in result:
        raise TypeError(f"{at} has no single type, so it has no structural schema: {source}")
    is_optional = "default" in source and source["default"] is None  # its absence has a meaning
    if result["type"] == "object" and not is_optional and _defaults_whole(result):
        result.setdefault("default", {})
    return result


def _resolve(source: Schema, definitions: dict[str, Schema], at: str) -> Schema:
    """Follow `$ref`, and reduce `anyOf` to its one type that is not null; outer keywords win."""
    outer = {key: value for key, value in source.items() if key not in ("$ref", "anyOf", "title")}
    if "x-kubernetes-int-or-string" in source:
        return outer
    if "$ref" in source:
        target = _resolve(definitions[source["$ref"].rsplit("/", 1)[-1]], definitions, at)
        return target | outer
    if "anyOf" in source:
        kinds = [kind for kind in source["anyOf"] if kind.get("type") != "null"]
        if len(kinds) != 1:
            raise TypeError(f"{at} is a union, which a structural schema cannot express")
        return _resolve(kinds[0], definitions, at) | outer
    return outer


def _is_verbatim(source: Schema) -> bool:
    """Return whether the model spells out this node's schema by hand, such as the Pod template's."""
    return bool(source.get("x-kubernetes-preserve-unknown-fields")) and "properties" in source


def _verbatim(source: Schema) -> Schema:
    return {key: value for key, value in source.items() if key not in ("title", "additionalProperties")}


def _described(source: Schema) -> Schema:
    return {"description": source["description"]} if "description" in source else {}


def _defaults_whole(schema: Schema) -> bool:
    """Return whether an absent object can default to {}: it has defaults inside and no required fields."""
    properties: dict[str, Schema] = schema.get("properties", {})
    return not schema.get("required") and any("default" in value for value in properties.values())
