"""A small API client: raw objects, typed errors, every call limited in time."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
import yaml

from localcluster.resource import JSON

CALL_TIMEOUT_SECONDS = 10.0
WATCH_CHUNK_LIMIT_BYTES = 64 * 1024 * 1024
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


class ApiFailure(Exception):
    """The server refused. `code` and `reason` are what callers decide by."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def conflict(self) -> bool:
        return self.code == 409

    @property
    def expired(self) -> bool:
        return self.code == 410


class ApiUnavailable(Exception):
    """No answer: refused, reset, timed out, or the server said to come back later."""


@dataclass(frozen=True)
class Collection:
    """The URL paths of a kind's objects."""

    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        parts = [self.prefix]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace)]
        parts.append(self.plural)
        if name:
            parts.append(quote(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


PODS = Collection("/api/v1", "pods")
NODES = Collection("/api/v1", "nodes", namespaced=False)
NAMESPACES = Collection("/api/v1", "namespaces", namespaced=False)
CONFIG_MAPS = Collection("/api/v1", "configmaps")
SECRETS = Collection("/api/v1", "secrets")
SERVICE_ACCOUNTS = Collection("/api/v1", "serviceaccounts")
EVENTS = Collection("/api/v1", "events")
LEASES = Collection("/apis/coordination.k8s.io/v1", "leases")
POD_GROUPS = Collection("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups")


@dataclass(frozen=True)
class Access:
    """How to reach the server and who we are, from a kubeconfig."""

    server: str
    token: str
    certificate_authority: bytes

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Access:
        config: JSON = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", "context", config["current-context"])
        cluster = _named(config, "clusters", "cluster", context["cluster"])
        user = _named(config, "users", "user", context["user"])
        if "certificate-authority-data" in cluster:
            authority = base64.b64decode(cluster["certificate-authority-data"])
        else:
            authority = Path(cluster["certificate-authority"]).read_bytes()
        return cls(cluster["server"], user["token"], authority)

    @property
    def host(self) -> str:
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.server).port or 443


def _named(config: JSON, entries: str, key: str, name: str) -> JSON:
    for entry in config[entries]:
        if entry["name"] == name:
            found: JSON = entry[key]
            return found
    raise ValueError(f"the kubeconfig has no {key} named {name}")


class Contact:
    """The time since which the server has answered without a gap: its silence is not a node's."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def since(self) -> float | None:
        """Monotonic seconds; None while the server is away."""
        return self._since

    def answered(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def lost(self) -> None:
        self._since = None


class ApiClient:
    """One connection pool to the API server. Use as an async context manager."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.contact = Contact()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        context = ssl.create_default_context(cadata=self.access.certificate_authority.decode())
        self._session = aiohttp.ClientSession(
            base_url=self.access.server,
            headers={"Authorization": f"Bearer {self.access.token}", "User-Agent": "localcluster"},
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_SECONDS),
            read_bufsize=WATCH_CHUNK_LIMIT_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> JSON:
        return await self._call("GET", path)

    async def list(self, collection: Collection, namespace: str | None = None, **query: str) -> JSON:
        return await self._call("GET", collection.path(namespace), query=query)

    async def create(self, path: str, obj: JSON) -> JSON:
        return await self._call("POST", path, body=obj)

    async def replace(self, path: str, obj: JSON) -> JSON:
        return await self._call("PUT", path, body=obj)

    async def patch(self, path: str, patch: JSON, *, kind: str = MERGE_PATCH) -> JSON:
        return await self._call("PATCH", path, body=patch, content_type=kind)

    async def delete(self, path: str, *, uid: str, grace_period_seconds: int | None = None) -> JSON:
        options: JSON = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        return await self._call("DELETE", path, body=options)

    async def ready(self) -> bool:
        """Whether the server says that it serves."""
        try:
            async with self._opened.get("/readyz") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    @asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[AsyncIterator[JSON]]:
        """The events of a watch. It ends when the server ends it, fails if silent for `silence_seconds`."""
        timeout = aiohttp.ClientTimeout(sock_connect=CALL_TIMEOUT_SECONDS, sock_read=silence_seconds)
        try:
            async with self._opened.get(path, params=query, timeout=timeout) as response:
                if response.status != 200:
                    raise _failure(response.status, await response.read())
                self.contact.answered()
                yield _lines(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnavailable(str(error) or type(error).__name__) from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: JSON | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> JSON:
        arguments: dict[str, Any] = {"params": query}
        if body is not None:
            arguments |= {"data": orjson.dumps(body), "headers": {"Content-Type": content_type}}
        try:
            async with self._opened.request(method, path, **arguments) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.contact.lost()
            raise ApiUnavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error
        if response.status == 429 or response.status >= 500:
            raise ApiUnavailable(f"{method} {path}: {_failure(response.status, content)}")
        self.contact.answered()
        if response.status >= 400:
            raise _failure(response.status, content)
        answer: JSON = orjson.loads(content)
        return answer

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside of its context")
        return self._session


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[JSON]:
    async for line in response.content:
        if line.strip():
            yield orjson.loads(line)


def _failure(code: int, content: bytes) -> ApiFailure:
    try:
        status = orjson.loads(content)
        return ApiFailure(code, str(status.get("reason", "")), str(status.get("message", "")))
    except (orjson.JSONDecodeError, AttributeError):
        return ApiFailure(code, "", content.decode(errors="replace")[:500] or f"HTTP {code}")
