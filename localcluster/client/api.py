"""How the embedded cluster's parts ask its API server: by path, over the controller runtime's client."""

from __future__ import annotations

from controller.api.calls import MERGE_PATCH
from controller.client import AsyncClient
from controller.connection import Connection
from controller.resources import Resource
from localcluster.resource import JSON

STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CALL_TIMEOUT_SECONDS = 60.0
"""The server is a process beside us: where it is slow to answer, it waits for a CPU, and will answer."""
POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")


class ApiClient:
    """One connection pool to the API server. Use as an async context manager."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.runtime = AsyncClient(connection, call_timeout_seconds=CALL_TIMEOUT_SECONDS)
        self.contact = self.runtime.contact

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runtime.close()

    async def get(self, path: str) -> JSON:
        return await self.runtime.ask("GET", path)

    async def create(self, path: str, obj: JSON) -> JSON:
        return await self.runtime.ask("POST", path, obj)

    async def replace(self, path: str, obj: JSON) -> JSON:
        return await self.runtime.ask("PUT", path, obj)

    async def patch(self, path: str, patch: JSON, *, kind: str = MERGE_PATCH) -> JSON:
        return await self.runtime.ask("PATCH", path, patch, kind)

    async def delete(self, path: str, *, uid: str, grace_period_seconds: int | None = None) -> JSON:
        options: JSON = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        return await self.runtime.ask("DELETE", path, options)
