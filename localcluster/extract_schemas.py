"""Developer's tool: refreshes `builtin_schemas.json` from Kubernetes' published OpenAPI definitions.

The embedded API server validates, prunes, patches and explains built-in kinds by Kubernetes' own schemas.
They change once a Kubernetes release, so a compact copy is committed and nothing at run time depends on
where it came from. Run with the path of a `_definitions.json` of the `kubernetes-validate` package, which
keeps what client models lose: merge keys, list types, formats and quantities.

    python -m localcluster.extract_schemas .../v1.37.0-local/_definitions.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from localcluster.builtin import DATA_FILE, ROOT_COMPONENTS
from localcluster.schema_nodes import reference_to, references

DESCRIPTION_LIMIT = 240

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."

_SCHEMA = _EXTENSIONS + "JSONSchemaProps"
_SCHEMA_OR_BOOLEAN = _EXTENSIONS + "JSONSchemaPropsOrBool"

REPLACED = frozenset(
    {"io.k8s.apimachinery.pkg.api.resource.Quantity", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"}
    | {"io.k8s.apimachinery.pkg.runtime.RawExtension", _META + "FieldsV1", _EXTENSIONS + "JSON"}
    | {_EXTENSIONS + name for name in ("JSONSchemaPropsOrArray", "JSONSchemaPropsOrStringArray")}
)
"""Types whose JSON form is not what the published definition says. They stay as they are in the copy."""

_KEPT_ATTRIBUTES = (
    "required",
    "format",
    "x-kubernetes-group-version-kind",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
)


def short_description(text: str) -> str:
    """The first sentences that fit."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    if len(paragraph) <= DESCRIPTION_LIMIT:
        return paragraph
    cut = paragraph.rfind(". ", 0, DESCRIPTION_LIMIT)
    return paragraph[: cut + 1] if cut > 0 else paragraph[:DESCRIPTION_LIMIT].rsplit(" ", 1)[0] + "..."


def convert(node: dict[str, Any]) -> dict[str, Any]:
    """One published definition as an OpenAPI v3 schema."""
    result: dict[str, Any] = {}
    if text := short_description(node.get("description", "")):
        result["description"] = text
    if "$ref" in node:
        result |= reference_to(node["$ref"].rsplit("/", 1)[1])
    if "type" in node:
        kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
        result["type"] = next(kind for kind in kinds if kind != "null")
    for attribute in _KEPT_ATTRIBUTES:
        if attribute in node:
            result[attribute] = node[attribute]
    if "properties" in node:
        result["properties"] = {name: convert(child) for name, child in sorted(node["properties"].items())}
    if "items" in node:
        result["items"] = convert(node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = convert(node["additionalProperties"])
    return result


def _or_boolean(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `additionalProperties`: a schema or a boolean."""
    either = {"oneOf": [{"type": "object"}, {"type": "boolean"}]}
    return either | {key: value for key, value in schema.items() if key != "type"}


def extract(definitions: dict[str, Any]) -> dict[str, Any]:
    """The components that the served kinds need, and those that these need."""
    present = json.loads(DATA_FILE.read_text())["components"]
    components: dict[str, Any] = {}
    waiting = set(ROOT_COMPONENTS)
    while waiting:
        name = waiting.pop()
        components[name] = present[name] if name in REPLACED else convert(definitions[name])
        if name == _SCHEMA_OR_BOOLEAN:
            components[name] = _or_boolean(convert(definitions[_SCHEMA]))
        waiting |= references(components[name]) - components.keys()
    return dict(sorted(components.items()))


def main() -> None:
    definitions = json.loads(Path(sys.argv[1]).read_text())["$defs"]
    content = {
        "source": "OpenAPI definitions of Kubernetes 1.37 (Apache License 2.0), descriptions shortened",
        "components": extract(definitions),
    }
    DATA_FILE.write_text(json.dumps(content, indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
