"""Events, written in the background: a repeated one raises the count of the first."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from dataclasses import dataclass

from controller.errors import NotFound, Refused, Unavailable
from controller.resources import EVENTS
from localcluster.client.api import ApiClient
from localcluster.client.clock import timestamp, utc_now
from localcluster.resource import JSON

MAX_WAITING = 2000
MAX_REMEMBERED = 2000
RETRY_SECONDS = 1.0
MESSAGE_MAX_CHARACTERS = 1024

log = logging.getLogger(__name__)

Fingerprint = tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    name: str
    count: int


class Recorder:
    """Never blocks its caller; Events that are refused, or too many, are dropped and logged."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._client = client
        self._component = component
        self._waiting: asyncio.Queue[JSON] = asyncio.Queue(MAX_WAITING)
        self._remembered: OrderedDict[Fingerprint, _Entry] = OrderedDict()

    def normal(self, about: JSON, reason: str, message: str, *, host: str = "", field: str = "") -> None:
        self._record(about, "Normal", reason, message, host, field)

    def warning(self, about: JSON, reason: str, message: str, *, host: str = "", field: str = "") -> None:
        self._record(about, "Warning", reason, message, host, field)

    async def run(self) -> None:
        """Write for ever; the process that asked for it bounds it."""
        while True:
            event = await self._waiting.get()
            while not await self._written(event):  # noqa: ASYNC110 - the server says nothing when it is back
                await asyncio.sleep(RETRY_SECONDS)

    async def _written(self, event: JSON) -> bool:
        """False while the server is away: what happens meanwhile waits, up to MAX_WAITING."""
        try:
            await self._write(event)
        except Unavailable:
            return False
        except Refused as failure:
            log.warning("event refused reason=%s message=%s: %s", event["reason"], event["message"], failure)
        return True

    def _record(self, about: JSON, kind: str, reason: str, message: str, host: str, field: str) -> None:
        metadata = about["metadata"]
        now = timestamp(utc_now())
        involved = {
            "apiVersion": about.get("apiVersion", "v1"),
            "kind": about["kind"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        if metadata.get("namespace"):
            involved["namespace"] = metadata["namespace"]
        if field:
            involved["fieldPath"] = field
        event: JSON = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": metadata.get("namespace") or "default"},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:MESSAGE_MAX_CHARACTERS],
            "source": {"component": self._component, **({"host": host} if host else {})},
            "reportingComponent": self._component,
            "reportingInstance": host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("event dropped, too many are waiting reason=%s message=%s", reason, message)

    async def _write(self, event: JSON) -> None:
        involved = event["involvedObject"]
        fingerprint = (involved["uid"], involved.get("fieldPath", ""), event["reason"], event["message"])
        namespace = event["metadata"]["namespace"]
        known = self._remembered.get(fingerprint)
        if known is not None:
            try:
                repeated = {"count": known.count + 1, "lastTimestamp": event["lastTimestamp"]}
                await self._client.patch(EVENTS.path(namespace, known.name), repeated)
                self._remember(fingerprint, _Entry(known.name, known.count + 1))
                return
            except Refused as failure:
                if not isinstance(failure, NotFound):
                    raise
        name = f"{involved['name']}.{uuid.uuid4().hex[:16]}"
        event["metadata"]["name"] = name
        await self._client.create(EVENTS.path(namespace), event)
        self._remember(fingerprint, _Entry(name, 1))

    def _remember(self, fingerprint: Fingerprint, entry: _Entry) -> None:
        self._remembered[fingerprint] = entry
        self._remembered.move_to_end(fingerprint)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
