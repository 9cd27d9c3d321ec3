"""OpenAPI v3 as the API server publishes it: an index, and one document for each group and version.

It has what kubectl reads: whether the server validates fields itself (the `fieldValidation` parameter of
PATCH), how to compute strategic merge patches, and the schemas for `kubectl explain`. Other operations are
left out.
"""

from __future__ import annotations

import hashlib
from functools import cache

import orjson

from localcluster.builtin import OBJECT_META, STATUS, component_of, components
from localcluster.resource import JSON, Registry, ResourceType
from localcluster.schema_nodes import reachable, reference_to, references

_PATCH_TYPES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def component_name(resource_type: ResourceType) -> str:
    """The name under which a kind's schema is published: `io.github.iml.elastic.v1alpha1.ElasticJob`."""
    if not resource_type.custom:
        return component_of(resource_type)
    reversed_group = ".".join(reversed(resource_type.group.split(".")))
    return f"{reversed_group}.{resource_type.version}.{resource_type.kind}"


class OpenApi:
    """The published documents, kept until the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = registry.generation
        self._documents: dict[tuple[str, str], bytes] = {}

    def index(self) -> JSON:
        """The answer of `/openapi/v3`. Clients keep a document as long as its hash stays."""
        paths: JSON = {}
        for group, version in dict.fromkeys((item.group, item.version) for item in self._registry):
            path = _base_path(group, version).removeprefix("/")
            digest = hashlib.sha256(self.document(group, version) or b"").hexdigest().upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return {"paths": paths}

    def document(self, group: str, version: str) -> bytes | None:
        """The answer of `/openapi/v3/apis/<group>/<version>`, or None for what is not served."""
        if self._generation != self._registry.generation:
            self._generation = self._registry.generation
            self._documents.clear()
        if (group, version) not in self._documents:
            types = [item for item in self._registry if (item.group, item.version) == (group, version)]
            if not types:
                return None
            self._documents[group, version] = orjson.dumps(_document(types))
        return self._documents[group, version]


def _document(types: list[ResourceType]) -> JSON:
    paths: JSON = {}
    schemas: JSON = {}
    for resource_type in types:
        paths |= _paths(resource_type)
        if resource_type.custom:
            schemas[component_name(resource_type)] = custom_schema(resource_type)
    needed = (references(schemas) | references(paths)) - schemas.keys()
    for name in reachable(needed, components()):
        schemas[name] = components()[name]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.37.0"},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _kind_extension(resource_type: ResourceType, kind: str) -> JSON:
    return {"group": resource_type.group, "version": resource_type.version, "kind": kind}


def custom_schema(resource_type: ResourceType) -> JSON:
    """A CRD's schema with what every object has."""
    schema = dict(resource_type.schema or {"type": "object"})
    schema["properties"] = {
        **_type_meta(),
        "metadata": {**reference_to(OBJECT_META), "description": "Standard object's metadata."},
        **{
            name: child
            for name, child in schema.get("properties", {}).items()
            if name not in ("apiVersion", "kind", "metadata")
        },
    }
    schema["x-kubernetes-group-version-kind"] = [_kind_extension(resource_type, resource_type.kind)]
    return schema


@cache
def _type_meta() -> JSON:
    properties = components()[STATUS]["properties"]
    return {name: properties[name] for name in ("apiVersion", "kind")}


def _base_path(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def _parameter(name: str, *, where: str = "query") -> JSON:
    parameter: JSON = {"name": name, "in": where, "schema": {"type": "string", "uniqueItems": True}}
    return parameter if where == "query" else {**parameter, "required": True}


_WRITE_PARAMETERS = [_parameter(name) for name in ("dryRun", "fieldManager", "fieldValidation")]


def _write(resource_type: ResourceType, action: str, content: JSON) -> JSON:
    """An operation that creates or changes an object."""
    schema = reference_to(component_name(resource_type))
    return {
        "operationId": f"{action}{resource_type.version}{resource_type.kind}",
        "parameters": _WRITE_PARAMETERS,
        "requestBody": {"content": content},
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _kind_extension(resource_type, resource_type.kind),
    }


def _paths(resource_type: ResourceType) -> JSON:
    base = _base_path(resource_type.group, resource_type.version)
    scoped = f"{base}/namespaces/{{namespace}}" if resource_type.namespaced else base
    scope = [_parameter("namespace", where="path")] if resource_type.namespaced else []
    collection = f"{scoped}/{resource_type.plural}"
    body = {"*/*": {"schema": reference_to(component_name(resource_type))}}
    paths: JSON = {collection: {"parameters": scope, "post": _write(resource_type, "post", body)}}
    if resource_type.stored:
        patch_types = _PATCH_TYPES if resource_type.custom else (*_PATCH_TYPES, _STRATEGIC_PATCH)
        patches = {media_type: {"schema": {"type": "object"}} for media_type in patch_types}
        item = [*scope, _parameter("name", where="path")]
        paths[f"{collection}/{{name}}"] = {
            "parameters": item,
            "patch": _write(resource_type, "patch", patches),
        }
    return paths
