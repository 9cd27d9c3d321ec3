"""Requests by path, to a server that has but the state of one test; and one-line objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import controller.resources
from tests.conformance import objects, rawapi, resources
from tests.conformance.rawapi import MERGE_PATCH, Reply, Watch
from tests.conformance.waiting import eventually

WIDGETS = resources.WIDGETS.path("default")
PODS = controller.resources.PODS.path("default")
CONFIG_MAPS = controller.resources.CONFIGMAPS.path("default")
CRDS = resources.CRDS.path()


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
        return await eventually(lambda: self.get(path), until=holds)


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    made = objects.configmap("default", name, {"a": "b"})
    return made | {"metadata": made["metadata"] | metadata}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return objects.pod("default", name, **spec)


def widget(name: str, spec: Any = None) -> dict[str, Any]:
    return objects.widget("default", name, spec)
