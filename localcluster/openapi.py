"""OpenAPI v3 as the API server publishes it: an index, and one document for each group and version.

kubectl reads it for three things: whether the server validates fields itself (the `fieldValidation`
parameter of PATCH), how to compute strategic merge patches, and `kubectl explain`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import orjson

from localcluster.builtin import DELETE_OPTIONS, LIST_META, OBJECT_META, STATUS, component_of, components
from localcluster.resource import JSON, Registry, ResourceType
from localcluster.schema_nodes import reachable, reference_to, references

_APPLY_PATCH = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
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
        if resource_type.stored:
            schemas[component_name(resource_type) + "List"] = _list_schema(resource_type)
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


def _list_schema(resource_type: ResourceType) -> JSON:
    return {
        "type": "object",
        "description": f"{resource_type.list_kind} is a list of {resource_type.kind}.",
        "required": ["items"],
        "properties": {
            **_type_meta(),
            "metadata": {**reference_to(LIST_META), "description": "Standard list metadata."},
            "items": {
                "type": "array",
                "description": f"List of {resource_type.plural}.",
                "items": reference_to(component_name(resource_type)),
            },
        },
        "x-kubernetes-group-version-kind": [_kind_extension(resource_type, resource_type.list_kind)],
    }


def _base_path(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def _parameter(name: str, kind: str, *, where: str = "query", required: bool = False) -> JSON:
    parameter: JSON = {"name": name, "in": where, "schema": {"type": kind, "uniqueItems": True}}
    return {**parameter, "required": True} if required else parameter


_WRITE_PARAMETERS = [
    _parameter("dryRun", "string"),
    _parameter("fieldManager", "string"),
    _parameter("fieldValidation", "string"),
]
_LIST_PARAMETERS = [
    _parameter("allowWatchBookmarks", "boolean"),
    _parameter("continue", "string"),
    _parameter("fieldSelector", "string"),
    _parameter("labelSelector", "string"),
    _parameter("limit", "integer"),
    _parameter("resourceVersion", "string"),
    _parameter("resourceVersionMatch", "string"),
    _parameter("sendInitialEvents", "boolean"),
    _parameter("timeoutSeconds", "integer"),
    _parameter("watch", "boolean"),
]
_DELETE_PARAMETERS = [
    _parameter("dryRun", "string"),
    _parameter("gracePeriodSeconds", "integer"),
    _parameter("propagationPolicy", "string"),
]


class _Operations:
    """Writes the operations of one kind."""

    def __init__(self, resource_type: ResourceType) -> None:
        self._type = resource_type
        self._kind = _kind_extension(resource_type, resource_type.kind)
        self._schema = reference_to(component_name(resource_type))
        self._patch_types = [_APPLY_PATCH, _JSON_PATCH, _MERGE_PATCH]
        if not resource_type.custom:
            self._patch_types.append(_STRATEGIC_PATCH)

    def _operation(self, action: str, answer: JSON, parameters: list[JSON], body: JSON | None = None) -> JSON:
        operation: JSON = {
            "tags": [_tag(self._type)],
            "operationId": f"{action}{self._type.version}{self._type.kind}",
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": self._kind,
        }
        return operation if body is None else {**operation, "requestBody": {"content": body}}

    def list(self) -> JSON:
        answer = reference_to(component_name(self._type) + "List")
        return self._operation("list", answer, _LIST_PARAMETERS)

    def get(self) -> JSON:
        return self._operation("get", self._schema, [])

    def _write(self, action: str) -> JSON:
        body = {"*/*": {"schema": self._schema}}
        return self._operation(action, self._schema, _WRITE_PARAMETERS, body)

    def post(self) -> JSON:
        return self._write("post")

    def put(self) -> JSON:
        return self._write("put")

    def patch(self) -> JSON:
        body = {media_type: {"schema": {"type": "object"}} for media_type in self._patch_types}
        return self._operation("patch", self._schema, _WRITE_PARAMETERS, body)

    def delete(self, action: str) -> JSON:
        body = {"*/*": {"schema": reference_to(DELETE_OPTIONS)}}
        return self._operation(action, reference_to(STATUS), _DELETE_PARAMETERS, body)


def _tag(resource_type: ResourceType) -> str:
    return f"{resource_type.group or 'core'}_{resource_type.version}"


_NAME = _parameter("name", "string", where="path", required=True)
_NAMESPACE = _parameter("namespace", "string", where="path", required=True)


def _paths(resource_type: ResourceType) -> JSON:
    operations = _Operations(resource_type)
    base = _base_path(resource_type.group, resource_type.version)
    scoped = f"{base}/namespaces/{{namespace}}" if resource_type.namespaced else base
    scope: list[JSON] = [_NAMESPACE] if resource_type.namespaced else []
    collection_path = f"{scoped}/{resource_type.plural}"
    if not resource_type.stored:
        return {collection_path: {"parameters": scope, "post": operations.post()}}
    item: dict[str, Any] = {
        "parameters": [*scope, _NAME],
        "get": operations.get(),
        "put": operations.put(),
        "patch": operations.patch(),
    }
    paths: JSON = {
        collection_path: {
            "parameters": scope,
            "get": operations.list(),
            "post": operations.post(),
            "delete": operations.delete("deletecollection"),
        },
        f"{collection_path}/{{name}}": {**item, "delete": operations.delete("delete")},
    }
    if resource_type.namespaced:
        paths[f"{base}/{resource_type.plural}"] = {"get": operations.list()}
    if "status" in resource_type.subresources:
        paths[f"{collection_path}/{{name}}/status"] = item
    return paths
