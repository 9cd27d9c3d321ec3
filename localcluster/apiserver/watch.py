"""A watch: what happened since a version, then what happens, as one JSON line an event.

Events reach a watch synchronously, in the order of their versions, before the writer's request is answered.
They wait here as bytes that all watches share, until the watch's connection takes them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from localcluster.apiserver.errors import ApiError, expired, forbidden_field, invalid
from localcluster.apiserver.requests import Context, options_type
from localcluster.apiserver.selection import Selection
from localcluster.apiserver.store import ChangeType, Collection, Event, Key, Store, Stored

BOOKMARK_INTERVAL_SECONDS = 60.0
DEFAULT_TIMEOUT_SECONDS = (1800, 3600)
PENDING_MAX_BYTES = 64 * 1024 * 1024
"""A client this far behind is cut off: it lists again, which is cheaper for everybody."""

Write = Callable[[bytes], Awaitable[None]]


class Encoder(Protocol):
    """How events look to one client."""

    def event(self, event: Event, as_type: ChangeType) -> bytes: ...

    def existing(self, stored: Stored) -> bytes: ...

    def bookmark(self, version: int, *, ends_initial_events: bool) -> bytes: ...

    def error(self, error: ApiError) -> bytes: ...


def seen_as(event: Event, selection: Selection) -> ChangeType | None:
    """Return a change as a watch of a selection sees it: objects enter and leave the selection."""
    before = event.before is not None and selection.matches(event.key, event.before.obj)
    if event.type is ChangeType.DELETED:
        return ChangeType.DELETED if before else None
    now = selection.matches(event.key, event.now.obj)
    if now:
        return ChangeType.MODIFIED if before else ChangeType.ADDED
    return ChangeType.DELETED if before else None


class Watch:
    """The events of one client, from the store to its connection."""

    def __init__(self, selection: Selection, encoder: Encoder) -> None:
        self.namespace = selection.namespace
        self.name = selection.name
        self._selection = selection
        self.encoder = encoder
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._overrun = False
        self._woken: asyncio.Future[None] | None = None

    def deliver(self, event: Event) -> None:
        as_type = seen_as(event, self._selection)
        if as_type is not None:
            self.send(self.encoder.event(event, as_type))

    def show(self, key: Key, stored: Stored) -> None:
        """Tell of an object that is there already."""
        if self._selection.matches(key, stored.obj):
            self.send(self.encoder.existing(stored))

    def send(self, line: bytes) -> None:
        if self._overrun:
            return
        self._pending.append(line)
        self._pending_bytes += len(line)
        self._overrun = self._overrun or self._pending_bytes > PENDING_MAX_BYTES
        self._wake()

    async def run(self, store: Store, write: Write, *, timeout_seconds: float, bookmarks: bool) -> None:
        """Pass events on until the time is up, or the client is too slow."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_seconds
        next_bookmark_at = min(loop.time() + BOOKMARK_INTERVAL_SECONDS, ends_at) if bookmarks else ends_at
        while not self._overrun:
            if self._pending:
                await self._flush(write)
                continue
            now = loop.time()
            if bookmarks and now >= next_bookmark_at:
                self.send(self.encoder.bookmark(store.version, ends_initial_events=False))
                next_bookmark_at = min(now + BOOKMARK_INTERVAL_SECONDS, max(ends_at, now + 1))
                continue
            if now >= ends_at:
                return
            await self._wait_until(next_bookmark_at)

    async def _flush(self, write: Write) -> None:
        batch = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        await write(batch)

    async def _wait_until(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        timer = loop.call_at(when, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def begin(watch: Watch, context: Context, collection: Collection, store: Store) -> None:
    """Put into the watch all that it must see before what happens next. Raises 410 for a version too old."""
    initial_events = _wants_initial_events(context)
    version = context.query.get("resourceVersion") or "0"
    start = context.integer("resourceVersion") or 0
    if initial_events or (initial_events is None and version == "0"):
        for key, stored in store.select(collection.name, watch.namespace):
            watch.show(key, stored)
        if initial_events and context.flag("allowWatchBookmarks"):
            watch.send(watch.encoder.bookmark(store.version, ends_initial_events=True))
        return
    if version == "0":
        return
    events = collection.since(start) if start <= store.version else None
    if events is None:
        raise expired(f"too old resource version: {start} ({collection.complete_since})")
    for event in events:
        watch.deliver(event)


def _wants_initial_events(context: Context) -> bool | None:
    """`sendInitialEvents`, or None where the client leaves it to the resource version."""
    text = context.query.get("sendInitialEvents")
    match = context.query.get("resourceVersionMatch")
    if text is None:
        if match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise invalid(options_type("ListOptions"), "", [forbidden_field("resourceVersionMatch", why)])
        return None
    if match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid(options_type("ListOptions"), "", [forbidden_field("resourceVersionMatch", why)])
    return text.lower() in ("true", "1")


def timeout_of(context: Context) -> float:
    """`timeoutSeconds`, or like Kubernetes some time between half an hour and an hour."""
    asked = context.integer("timeoutSeconds")
    return float(asked) if asked else random.uniform(*DEFAULT_TIMEOUT_SECONDS)
