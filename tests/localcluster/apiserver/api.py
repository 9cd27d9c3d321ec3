"""A client for tests that hides nothing of HTTP, and one-line objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
EVENT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    code: int
    body: Any
    headers: Any
    content: bytes
    """The body as it came."""

    @property
    def message(self) -> str:
        return str(self.body["message"])

    @property
    def reason(self) -> str:
        return str(self.body["reason"])

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


def _value(content: bytes) -> Any:
    """What the server says; as bytes where that is nested too deeply for this client."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        assert "depth limit" in str(error)
        return content


class Events:
    """The lines of a watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> dict[str, Any]:
        return orjson.loads(await self.line())

    async def line(self) -> bytes:
        line = await asyncio.wait_for(self._response.content.readline(), EVENT_TIMEOUT_SECONDS)
        assert line, "the watch ended"
        return line

    async def seen(self, count: int) -> list[tuple[str, str]]:
        """The types and names of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


class Api:
    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self.url = url
        self._session = session
        self._token = token

    def as_bearer(self, token: str) -> Api:
        return Api(self._session, self.url, token)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        sent = {"Accept": accept, "Content-Type": content_type, **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        parameters = {key: str(value) for key, value in query.items()}
        async with self._session.request(
            method, self.url + path, data=data, params=parameters, headers=sent
        ) as response:
            content = await response.read()
            is_json = response.content_type == "application/json"
            body = _value(content) if is_json else content
            return Answer(response.status, body, response.headers, content)

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("POST", path, body, **options)

    async def put(self, path: str, body: Any, **options: Any) -> Answer:
        return await self.request("PUT", path, body, **options)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **options: Any) -> Answer:
        return await self.request("PATCH", path, body, content_type=content_type, **options)

    async def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.request("DELETE", path, body, **options)

    async def created(self, path: str, body: Any) -> dict[str, Any]:
        answer = await self.post(path, body)
        assert answer.code == 201, answer.body
        return answer.body

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator[Events]:
        parameters = {"watch": "true", **{key: str(value) for key, value in query.items()}}
        accept = parameters.pop("accept", "application/json")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        async with self._session.get(self.url + path, params=parameters, headers=headers) as response:
            assert response.status == 200, await response.text()
            yield Events(response)

    async def eventually(self, path: str, holds: Callable[[Answer], bool]) -> Answer:
        """Wait for what the server does soon after it has answered."""
        async with asyncio.timeout(EVENT_TIMEOUT_SECONDS):
            while not holds(answer := await self.get(path)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return answer

    async def gone(self, path: str) -> None:
        await self.eventually(path, lambda answer: answer.code == 404)


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
