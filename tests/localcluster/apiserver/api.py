"""Requests by path, to a server that has but the state of one test; and one-line objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from tests.conformance import rawapi
from tests.conformance.rawapi import MERGE_PATCH, Reply, Watch
from tests.conformance.waiting import eventually

WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SOON_SECONDS = 300.0


@dataclass(frozen=True)
class Api:
    raw: rawapi.Api

    @property
    def token(self) -> str:
        return self.raw.access.headers["authorization"].removeprefix("Bearer ")

    def as_bearer(self, token: str) -> Api:
        return Api(self.raw.as_token(token))

    async def get(self, path: str, **query: Any) -> Reply:
        return await self.raw.call("GET", path, query={key: str(value) for key, value in query.items()})

    async def post(self, path: str, body: Any) -> Reply:
        return await self.raw.call("POST", path, body=body)

    async def patch(self, path: str, body: Any) -> Reply:
        return await self.raw.call("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(self, path: str, body: Any = None) -> Reply:
        return await self.raw.call("DELETE", path, body=body)

    async def created(self, path: str, body: Any) -> dict[str, Any]:
        return (await self.post(path, body)).expect(201)

    def watch(self, path: str, **query: Any) -> AbstractAsyncContextManager[Watch]:
        return self.raw.watch_path(path, **{key: str(value) for key, value in query.items()})

    async def eventually(self, path: str, holds: Callable[[Reply], bool]) -> Reply:
        """Wait for what the server does soon after it has answered."""
        return await eventually(lambda: self.get(path), within_seconds=SOON_SECONDS, until=holds)


def config_map(name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **fields}, "data": {"a": "b"}}


def pod(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "busybox:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": containers, **spec},
    }


def widget(name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name, **metadata},
        "spec": {"size": 1} if spec is None else spec,
    }


def widget_definition() -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer", "minimum": 0, "default": 3},
                    "colour": {"type": "string"},
                    "replicas": {"type": "integer"},
                },
                "x-kubernetes-validations": [
                    {"rule": "!has(self.colour) || self.colour != 'beige'", "message": "no beige, please"}
                ],
            },
            "status": {
                "type": "object",
                "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}},
            },
        },
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
