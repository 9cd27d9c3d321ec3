"""Informer: keeps the store of one resource equal to the API server's collection, and notifies handlers of
changes.

The `Reflector` decides the next request, and the consequence of a failure, which is a typed error of the
client; a list replaces the whole content of the store. `advance` sends one request, and `run` is the
endless loop around it, which alone waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import orjson

from controller import clock, salvage
from controller.api.transport import WatchStream
from controller.client import AsyncClient
from controller.errors import (
    ApiError,
    SilentWatch,
    error_of_status,
)
from controller.resources import Object, Resource
from controller.salvage import UnreadableObject
from controller.shape import Shape
from controller.shares import Shares
from controller.slices import Slices
from controller.store import key_of, version_number
from controller.watch.intake import Intake
from controller.watch.reflector import PageRequest, Reflector, WatchTiming

log = logging.getLogger(__name__)


class Informer:
    """Store of one resource, with handlers of its changes. Shared by all controllers."""

    def __init__(
        self,
        client: AsyncClient,
        resource: Resource,
        shape: Shape,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        timing: WatchTiming | None = None,
        shares: Shares | None = None,
        monotonic: Callable[[], float] = clock.monotonic,
        is_optional: bool = False,
    ) -> None:
        self.resource = resource
        self._is_optional = is_optional
        self.intake = Intake(resource, shape, shares or Shares(), monotonic)
        self.store = self.intake.store
        self.synced = asyncio.Event()
        self.last_error: ApiError | None = None
        self._monotonic = monotonic
        self.progressed_at = monotonic()
        """Time when the store was last known to equal the API server's collection."""
        self._shape = shape
        self._client = client
        self._namespace = namespace if resource.namespaced else None
        self._label_selector = label_selector
        self._timing = timing or WatchTiming()
        self._reflector = Reflector(self._timing)
        self._listed: list[Object] = []
        self._listed_unreadable: list[UnreadableObject] = []
        self._stream: WatchStream | None = None
        self._stream_scope = AsyncExitStack()

    def note_write(self, obj: Object) -> None:
        """Store the server's answer to a write of this process, ahead of the watch.

        So the next reconcile starts from its own last write, and does not conflict with it. An answer
        older than the watch is ignored; otherwise a deleted object could reappear.
        """
        if salvage.strange_parts(obj) is not None:
            return
        written, seen = (
            version_number(obj["metadata"].get("resourceVersion")),
            version_number(self._reflector.version),
        )
        if written is None or seen is None or written <= seen or not self._is_watched(obj):
            return
        self.intake.apply(obj, key_of(obj))

    def _is_watched(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        if self._namespace is not None and metadata.get("namespace") != self._namespace:
            return False
        labels = metadata.get("labels") or {}
        wanted = dict(term.split("=") for term in (self._label_selector or "").split(",") if term)
        return wanted.items() <= labels.items()

    def list_again(self) -> None:
        """Make the next `run` begin with a list; `run` must have ended. Until the list arrives, the store
        stays as it is."""
        self._reflector.start()
        self.synced.clear()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                wait_seconds = await self.advance()
                await asyncio.sleep(wait_seconds)  # even if 0: a flood of events must not starve the loop
        finally:
            await self._close_stream()

    async def advance(self) -> float:
        """Send one request, and process the answer; return the seconds to wait before the next."""
        reflector = self._reflector
        try:
            if reflector.version is None:
                await self._read_page(reflector.page)
                return 0.0
            if self.intake.wants_list():
                await self._close_stream()
                reflector.list_all()
                return 0.0
            if self._stream is None:
                await self._open(reflector.version)
            elif not await self._read(self._stream):
                await self._close_stream()
                return reflector.ended(clock.monotonic())
            return self.resource.gather_seconds
        except ApiError as error:
            await self._close_stream()
            recovery = reflector.failed(error, clock.monotonic())
            if recovery.failure is not None:
                self._note(recovery.failure)
            return recovery.wait_seconds

    async def _read_page(self, due: PageRequest) -> None:
        if due.token is None:
            self.intake.begin_list()
            self._listed, self._listed_unreadable = [], []
        page = await self._client.list_page(
            self.resource,
            self._namespace,
            shape=self._shape,
            is_split=True,
            label_selector=self._label_selector,
            page_size=due.limit,
            continue_token=due.token,
            most_bytes=due.most_bytes,
        )
        await asyncio.sleep(0)  # parsing took a while
        items, metadata = page["items"], page.get("metadata") or {}
        count = len(items)
        kept, unreadable = await self.intake.read_all(items)
        self._listed += kept
        self._listed_unreadable += unreadable
        self.progressed_at = self._monotonic()
        token, version = metadata.get("continue"), metadata.get("resourceVersion")
        if not token:
            await self.intake.replace(self._listed, self._listed_unreadable)
            self._listed, self._listed_unreadable = [], []
        if self._reflector.page_arrived(count, page.get("bytes", 0), token, version):
            self.last_error = None
            self.synced.set()

    async def _open(self, resource_version: str) -> None:
        # Randomized, so that the watches of many processes do not all end together.
        timeout_seconds = int(self._timing.server_timeout_seconds * random.uniform(0.8, 1.0))
        self._stream = await self._stream_scope.enter_async_context(
            self._client.watch(
                self.resource,
                self._namespace,
                resource_version=resource_version,
                timeout_seconds=timeout_seconds,
                label_selector=self._label_selector,
            )
        )
        self._reflector.opened(clock.monotonic())

    async def _read(self, stream: WatchStream) -> bool:
        """Process the lines of the watch; return whether it continues.

        Opening a watch is not progress yet; one that ends at once may not have had time to send anything.
        """
        idle_seconds = self._timing.idle_timeout_seconds
        wait_seconds = min(idle_seconds, self.intake.seconds_to_next())
        try:
            lines = await stream.lines(wait_seconds)
        except SilentWatch:
            if wait_seconds == idle_seconds:
                self.progressed_at = self._monotonic()
                return False
            lines = []
        if lines is None:
            if self._reflector.is_useful(clock.monotonic()):
                self.progressed_at = self._monotonic()
            return False
        slices = Slices()
        for line in filter(None, lines):
            self._reflector.event_arrived(await self._take(line))
            self.progressed_at = self._monotonic()
            await slices.pause()
        await self.intake.take_due()
        return True

    async def _take(self, line: bytes) -> str | None:
        """Process one line of the stream; return its version.

        Raises:
            ApiError: the line is an error, or malformed.
        """
        event = await self.intake.event_of(line)
        if event.type == "ERROR":
            status = orjson.loads(line)["object"]
            code = status.get("code")
            raise error_of_status(status, code if isinstance(code, int) else 500)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            self.last_error = None
            return self.intake.receive(event, line)
        if event.type == "BOOKMARK":
            return self._shape.identity(event.object).resourceVersion
        raise ApiError(f"a watch event of type {event.type!r}")

    def _note(self, error: ApiError) -> None:
        """Log a failure unless it is the same as the last."""
        if str(self.last_error) != str(error):
            level = logging.INFO if self._is_optional else logging.WARNING
            log.log(level, "watch failed resource=%s error=%s", self.resource.group_resource, error)
        self.last_error = error

    async def _close_stream(self) -> None:
        self._stream = None
        await self._stream_scope.aclose()
