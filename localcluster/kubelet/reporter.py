"""Writes a Pod's status whenever it has changed, and keeps at it while the API server is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from controller.errors import Conflict, NotFound, Refused, Unavailable
from controller.resources import PODS
from localcluster.client.api import STRATEGIC_PATCH, ApiClient
from localcluster.client.clock import utc_now
from localcluster.resource import JSON

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)

Build = Callable[[Sequence[JSON], datetime], JSON]
"""The status, given the conditions as last written, and now."""


class StatusReporter:
    """One write at a time; changes in between become one."""

    def __init__(self, client: ApiClient, pod: JSON, build: Build) -> None:
        metadata = pod["metadata"]
        self._client = client
        self._uid = metadata["uid"]
        self._path = PODS.path(metadata["namespace"], metadata["name"], "status")
        self._build = build
        self._conditions: Sequence[JSON] = (pod.get("status") or {}).get("conditions") or ()
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: JSON | None = None
        self._version = 0

    def changed(self) -> None:
        self._dirty.set()

    def seen(self, pod: JSON) -> None:
        """A newer version of the Pod: if somebody else has changed our conditions, say again how it is."""
        if self._written is None or int(pod["metadata"]["resourceVersion"]) <= self._version:
            return
        stored = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or ()}
        if any(stored.get(c["type"]) != c["status"] for c in self._written["conditions"]):
            self._written = None
        self._dirty.set()

    async def run(self) -> None:
        """Until cancelled: the Pod's worker bounds it."""
        while True:
            await self._dirty.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write what is true now, unless it is written already."""
        async with self._writing:
            retry_seconds = FIRST_RETRY_SECONDS
            while True:
                self._dirty.clear()
                status = self._build(self._conditions, utc_now())
                if status == self._written:
                    return
                try:
                    await self._write(status)
                    return
                except Unavailable:  # the Pod's life bounds this
                    await asyncio.sleep(retry_seconds)
                    retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)

    async def _write(self, status: JSON) -> None:
        try:
            body = {"metadata": {"uid": self._uid}, "status": status}
            answer = await self._client.patch(self._path, body, kind=STRATEGIC_PATCH)
        except Refused as failure:
            if not isinstance(failure, NotFound | Conflict):  # gone, or another Pod of the same name
                log.error("status refused path=%s error=%s", self._path, failure)
        else:
            self._conditions = answer.get("status", {}).get("conditions") or ()
            self._version = int(answer["metadata"]["resourceVersion"])
        self._written = status
