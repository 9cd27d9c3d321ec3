"""The API over plain HTTP: what the tests say is what goes over the wire, and nothing is retried."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from controller.resources import Resource

from .backend import Access

JSON = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

REQUEST_TIMEOUT_SECONDS = 300.0
EVENT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str
    warnings: tuple[str, ...]

    @property
    def body(self) -> JSON:
        return json.loads(self.text)

    @property
    def message(self) -> str:
        return str(self.body["message"])

    @property
    def names(self) -> list[str]:
        return names(self.body)

    def expect(self, *statuses: int) -> JSON:
        """The body, of a reply that must have one of these statuses."""
        assert self.status in statuses, f"HTTP {self.status}, not {statuses}: {self.text[:2000]}"
        return json.loads(self.text) if self.text[:1] in "{[" and self.text else {}

    def refused(self, status: int, reason: str) -> JSON:
        """The Status object of a refusal, checked for the shape that clients rely on."""
        body = self.expect(status)
        assert body["kind"] == "Status"
        assert body["apiVersion"] == "v1"
        assert body["status"] == "Failure"
        assert body["code"] == status
        assert body["reason"] == reason, body
        assert body["message"]
        return body


class WatchEnded(Exception):
    """The server closed the stream."""


class Watch:
    """One watch stream, line by line."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> JSON:
        line = await asyncio.wait_for(self.response.content.readline(), EVENT_TIMEOUT_SECONDS)
        if not line:
            raise WatchEnded
        return json.loads(line)

    async def until(self, wanted: Callable[[JSON], bool]) -> list[JSON]:
        """All events up to and with the first that is wanted."""
        seen: list[JSON] = []
        while not seen or not wanted(seen[-1]):
            seen.append(await self.next())
        return seen

    async def rest(self) -> list[JSON]:
        """All events until the server closes the stream."""
        seen: list[JSON] = []
        with suppress(WatchEnded):
            while True:
                seen.append(await self.next())
        return seen


@dataclass(frozen=True)
class Api:
    """One identity's view of the server."""

    session: aiohttp.ClientSession
    access: Access

    def as_token(self, token: str | None) -> Api:
        """The same server, for the bearer of another token, or of none."""
        return replace(self, access=self.access.with_token(token))

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Reply:
        headers = {**self.access.headers, "Accept": accept}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content_type
        async with self.session.request(
            method,
            self.access.server + path,
            params=query,
            data=data,
            headers=headers,
            ssl=self.access.tls,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
        ) as response:
            text = await response.text()
            warnings = tuple(response.headers.getall("Warning", ()))
            return Reply(response.status, response.headers, text, warnings)

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, sub: str = "", **options: Any
    ) -> Reply:
        return await self.call("GET", resource.path(namespace, name, sub or None), **options)

    async def list(self, resource: Resource, namespace: str | None = None, **query: str) -> Reply:
        return await self.call("GET", resource.path(namespace), query=query)

    async def create(
        self, resource: Resource, obj: JSON, *, namespace: str | None = None, **query: str
    ) -> Reply:
        where = namespace or obj["metadata"].get("namespace")
        return await self.call("POST", resource.path(where), body=obj, query=query)

    async def put(self, resource: Resource, obj: JSON, *, sub: str = "", **query: str) -> Reply:
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], sub or None)
        return await self.call("PUT", path, body=obj, query=query)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Any,
        *,
        sub: str = "",
        content_type: str = MERGE_PATCH,
        **query: str,
    ) -> Reply:
        path = resource.path(namespace, name, sub or None)
        return await self.call("PATCH", path, body=patch, content_type=content_type, query=query)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, options: JSON | None = None, **query: str
    ) -> Reply:
        return await self.call("DELETE", resource.path(namespace, name), body=options, query=query)

    def watch(
        self, resource: Resource, namespace: str | None = None, **query: str
    ) -> AbstractAsyncContextManager[Watch]:
        return self.watch_path(resource.path(namespace), **query)

    @asynccontextmanager
    async def watch_path(self, path: str, **query: str) -> AsyncIterator[Watch]:
        async with self.session.get(
            self.access.server + path,
            params={"watch": "true", **query},
            headers={**self.access.headers, "Accept": "application/json"},
            ssl=self.access.tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_SECONDS),
        ) as response:
            assert response.status == 200, f"watch: HTTP {response.status}: {await response.text()}"
            yield Watch(response)


def revision(obj: JSON) -> int:
    """An object's or a list's resourceVersion; Kubernetes promises them to be comparable."""
    return int(obj["metadata"]["resourceVersion"])


def names(body: JSON) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]
