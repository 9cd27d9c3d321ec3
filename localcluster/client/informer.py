"""A kept-up-to-date copy of one collection: list, watch, and list again when the past is gone.

The scheduler, the kubelets and the node lifecycle share these copies, so that the cluster pays for one watch
a kind. Handlers are told of changes; they ask the copy for what is true.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from enum import Enum

from localcluster.client.api import ApiClient, ApiFailure, ApiUnavailable, Collection
from localcluster.resource import JSON

WATCH_SECONDS = 240
WATCH_SILENCE_SECONDS = WATCH_SECONDS + 30.0
FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 1.0  # the server is a process beside us, back within a second of being restarted

log = logging.getLogger(__name__)

Key = tuple[str, str]


class Change(Enum):
    APPLIED = "applied"
    DELETED = "deleted"


Handler = Callable[[Change, JSON], None]


def key_of(obj: JSON) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class _HistoryLost(Exception):
    """The server no longer has the version that we would watch from."""


class Informer:
    """Objects are shared between all readers: read only."""

    def __init__(self, client: ApiClient, collection: Collection, namespace: str | None = None) -> None:
        self._client = client
        self._path = collection.path(namespace)
        self._objects: dict[Key, JSON] = {}
        self._handlers: list[Handler] = []
        self._version = ""
        self.synced = asyncio.Event()

    def get(self, namespace: str, name: str) -> JSON | None:
        return self._objects.get((namespace, name))

    def list(self) -> list[JSON]:
        return list(self._objects.values())

    def add_handler(self, handler: Handler) -> None:
        self._handlers.append(handler)

    async def run(self) -> None:
        """Keep up for ever; the process that asked for it bounds it."""
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                if not self._version:
                    await self._list()
                retry_seconds = FIRST_RETRY_SECONDS
                await self._watch()
            except _HistoryLost:
                self._version = ""
            except (ApiUnavailable, ApiFailure) as failure:
                log.debug("watch path=%s error=%s", self._path, failure)
                if isinstance(failure, ApiFailure):
                    self._version = ""
                await asyncio.sleep(retry_seconds * random.uniform(0.5, 1.0))
                retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)

    async def _list(self) -> None:
        body = await self._client.get(self._path)
        identity = {"apiVersion": body["apiVersion"], "kind": body["kind"].removesuffix("List")}
        listed = {key_of(item): identity | item for item in body["items"]}  # items of lists leave it out
        for key in [key for key in self._objects if key not in listed]:
            self._delete(self._objects[key])
        for item in listed.values():
            self._apply(item)
        self._version = body["metadata"]["resourceVersion"]
        self.synced.set()

    async def _watch(self) -> None:
        query = {
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        try:
            async with self._client.watch(self._path, query, silence_seconds=WATCH_SILENCE_SECONDS) as events:
                async for event in events:
                    self._take(event)
        except ApiFailure as failure:
            if failure.expired:
                raise _HistoryLost from failure
            raise

    def _take(self, event: JSON) -> None:
        obj = event["object"]
        match event["type"]:
            case "ERROR":
                if obj.get("code") == 410:
                    raise _HistoryLost
                raise ApiFailure(obj.get("code", 500), obj.get("reason", ""), obj.get("message", ""))
            case "DELETED":
                self._delete(obj)
            case "ADDED" | "MODIFIED":
                self._apply(obj)
        self._version = obj["metadata"]["resourceVersion"]

    def _apply(self, obj: JSON) -> None:
        key = key_of(obj)
        known = self._objects.get(key)
        if known is not None and known["metadata"]["uid"] != obj["metadata"]["uid"]:
            self._delete(known)
        self._objects[key] = obj
        if known is None or known["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            self._tell(Change.APPLIED, obj)

    def _delete(self, obj: JSON) -> None:
        self._objects.pop(key_of(obj), None)
        self._tell(Change.DELETED, obj)

    def _tell(self, change: Change, obj: JSON) -> None:
        for handler in self._handlers:
            try:
                handler(change, obj)
            except Exception:  # one reader's fault must not stop the others
                log.exception("handler failed path=%s object=%s", self._path, key_of(obj))
