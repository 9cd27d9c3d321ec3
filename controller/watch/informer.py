"""Keeps the store of one resource as the API server's collection, and tells the handlers of changes.

It lists in pages, and watches from there. What goes wrong is a typed error of the client, and `_recover` says
what follows from it: a page that does not come is asked for again; if the server refuses it, the list begins
anew, for its token may be what is wrong. A stream that ends, falls silent or breaks goes on from the last
resourceVersion, and nothing is missed. When the server has forgotten that version (410, also inside the
stream), or does not know it yet (its storage was restored), everything is listed again and replaced at one
stroke. `advance` does one ask, and `run` is the endless loop around it, which alone waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson

from controller import clock, salvage
from controller.api.pages import MOST_WHOLE_BYTES, PageSize
from controller.api.transport import WatchStream
from controller.backoff import Backoff
from controller.client import Client
from controller.errors import (
    ApiError,
    Gone,
    NotFound,
    PageTooLarge,
    Refused,
    SilentWatch,
    TimedOut,
    Unavailable,
    error_of_status,
)
from controller.resources import Object, Resource
from controller.salvage import Unreadable
from controller.shape import Shape
from controller.shares import Shares
from controller.slices import Slices
from controller.store import key_of, version_number
from controller.watch.intake import Intake

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WatchTiming:
    """How long to trust a silent watch, and how long to wait after failures.

    Bookmarks come about once a minute at best and are promised by nobody, so a quiet collection idles
    out now and then: that costs one watch request from the last version, never a list.
    """

    idle_timeout_seconds: float = 45.0
    server_timeout_seconds: int = 300
    useful_stream_seconds: float = 5.0
    backoff_base_seconds: float = 0.2
    backoff_cap_seconds: float = 15.0
    """After refusals, and watches that are of no use: to ask again too soon costs the server a list."""
    away_cap_seconds: float = 2.0
    """While the server gives no usable answer. All that happens is seen so much later than it is back."""


class Informer:
    """One resource's store, and those who want to hear of its changes. Shared by all controllers."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        shape: Shape,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        timing: WatchTiming | None = None,
        shares: Shares | None = None,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.resource = resource
        self.intake = Intake(resource, shape, shares or Shares(), monotonic)
        self.store = self.intake.store
        self.synced = asyncio.Event()
        self.last_error: ApiError | None = None
        self._monotonic = monotonic
        self.progressed_at = monotonic()
        """When the store was last known to be as the API server's collection."""
        self._shape = shape
        self._client = client
        self._namespace = namespace if resource.namespaced else None
        self._label_selector = label_selector
        self._timing = timing or WatchTiming()
        self._pages = PageSize()
        self._version: str | None = None
        """The version up to which the store is complete; None while all has to be listed."""
        self._is_paged = True
        self._token: str | None = None
        """The token of the next page; None for the first."""
        self._listed: list[Object] = []
        self._listed_unreadable: list[Unreadable] = []
        self._stream: WatchStream | None = None
        self._stream_brought_news = False
        self._opened_at = 0.0
        self._stream_scope = AsyncExitStack()
        base_seconds = self._timing.backoff_base_seconds
        self._refused = Backoff(base_seconds, self._timing.backoff_cap_seconds)
        self._away = Backoff(base_seconds, self._timing.away_cap_seconds)

    def note_write(self, obj: Object) -> None:
        """Takes over what the server answered to a write of this process, ahead of the watch.

        So the next look decides from its own last write, and does not conflict with it. What the watch has
        shown already is left alone, or an object that is gone since would come back.
        """
        if salvage.strange_parts(obj) is not None:
            return
        written, seen = version_number(obj["metadata"].get("resourceVersion")), version_number(self._version)
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
        """`run`, which must have ended, begins with a list. Until that is there, the store stays as it is."""
        self._begin_list()
        self.synced.clear()
        self._reset_backoffs()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                wait_seconds = await self.advance()
                await asyncio.sleep(wait_seconds)  # also when 0: a flood of events must not starve the loop
        finally:
            await self._close_stream()

    async def advance(self) -> float:
        """Ask once, and take in what comes; return the seconds to wait before the next ask."""
        try:
            if self._version is None:
                await self._read_page()
                return 0.0
            if self.intake.wants_list():
                await self._close_stream()
                self._begin_list()
                return 0.0
            if self._stream is None:
                await self._open(self._version)
            elif not await self._read(self._stream):
                return await self._end()
            return self.resource.gather_seconds
        except ApiError as error:
            return await self._recover(error)

    async def _end(self, failure: ApiError | None = None) -> float:
        """Close the watch that is over; return the seconds to wait, or a server that ends every watch at once
        would be asked in a tight loop."""
        await self._close_stream()
        if not self._was_useful():
            return self._refused.next_seconds()
        self._reset_backoffs()
        return 0.0 if failure is None else self._after(failure)

    async def _recover(self, error: ApiError) -> float:
        """Prepare for going on after a failure; return the seconds to wait before that."""
        if self._version is None:
            return self._recover_list(error)
        failure = None if isinstance(error, Gone) else error
        if failure is not None:
            self._note(failure)
        if failure is None or isinstance(error, NotFound) or _version_is_ahead(error):
            # A watch that is 404 lost its CRD; when that comes back its objects are others.
            self._begin_list()
        return self._after(failure) if self._stream is None else await self._end(failure)

    def _recover_list(self, error: ApiError) -> float:
        is_later_page = self._token is not None
        if is_later_page and isinstance(error, Gone):
            self._begin_list(is_paged=False)
            return 0.0
        self._note(error)
        if isinstance(error, Refused if is_later_page else PageTooLarge | TimedOut):
            self._begin_list()
        return self._after(error)

    def _begin_list(self, *, is_paged: bool = True) -> None:
        """Have all listed; in one piece where the server has forgotten its pages."""
        self.intake.begin_list()
        self._version = self._token = None
        self._is_paged = is_paged
        self._listed, self._listed_unreadable = [], []

    def _after(self, failure: ApiError | None) -> float:
        """Two back-offs, so that after a long outage a list that is needed then has not to wait for long."""
        if not isinstance(failure, Unavailable):
            return self._refused.next_seconds()
        asked_for = min(failure.retry_after_seconds or 0.0, self._timing.backoff_cap_seconds)
        return max(self._away.next_seconds(), asked_for)

    def _reset_backoffs(self) -> None:
        self._refused.reset()
        self._away.reset()

    def _was_useful(self) -> bool:
        """Whether the watch lived long enough, or brought news; but not if all has to be listed again."""
        lived_seconds = asyncio.get_running_loop().time() - self._opened_at
        if lived_seconds >= self._timing.useful_stream_seconds:
            return True
        return self._stream_brought_news and self._version is not None

    async def _read_page(self) -> None:
        page = await self._fetch_fitting()
        await asyncio.sleep(0)  # parsing it took a while
        items = page["items"]
        self._pages.arrived(len(items), page.get("bytes", 0))
        kept, unreadable = await self.intake.read_all(items)
        self._listed += kept
        self._listed_unreadable += unreadable
        self.progressed_at = self._monotonic()
        metadata = page.get("metadata") or {}
        self._token = metadata.get("continue") or None
        if self._token is None:
            await self.intake.replace(self._listed, self._listed_unreadable)
            self._listed, self._listed_unreadable, self._is_paged = [], [], True
            self._version = str(metadata.get("resourceVersion") or "0")
            self.last_error = None
            self.synced.set()

    async def _fetch_fitting(self) -> Object:
        """The page, asked for in smaller ones as long as it is too large."""
        while True:
            try:
                return await self._client.list_page(
                    self.resource,
                    self._namespace,
                    shape=self._shape,
                    is_split=True,
                    label_selector=self._label_selector,
                    page_size=self._pages.limit if self._is_paged else None,
                    continue_token=self._token,
                    most_bytes=self._pages.most_bytes if self._is_paged else MOST_WHOLE_BYTES,
                )
            except PageTooLarge as error:
                if not self._is_paged or self._pages.limit == 1:
                    raise
                self._pages.too_large(error)
            except TimedOut:
                self._pages.timed_out()
                raise

    async def _open(self, resource_version: str) -> None:
        # Spread, so that the watches of many processes do not all end together.
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
        self._opened_at = asyncio.get_running_loop().time()
        self._stream_brought_news = False

    async def _read(self, stream: WatchStream) -> bool:
        """Take in what the watch has brought; return whether it goes on.

        One that is opened is no progress yet; one that ends at once may have had no time to tell anything.
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
            if self._was_useful():
                self.progressed_at = self._monotonic()
            return False
        slices = Slices()
        for line in filter(None, lines):
            await self._take(line)
            self._stream_brought_news = True
            self.progressed_at = self._monotonic()
            await slices.pause()
        await self.intake.take_due()
        return True

    async def _take(self, line: bytes) -> None:
        """Take in one line of the stream.

        Raises:
            ApiError: it tells of an error, or makes no sense.
        """
        event = await self.intake.event_of(line)
        if event.type == "ERROR":
            status = orjson.loads(line)["object"]
            code = status.get("code")
            raise error_of_status(status, code if isinstance(code, int) else 500)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            version = self.intake.receive(event, line)
            self.last_error = None
        elif event.type == "BOOKMARK":
            version = self._shape.identity(event.object).resourceVersion
        else:
            raise ApiError(f"a watch event of type {event.type!r}")
        if version:
            self._version = version

    def _note(self, error: ApiError) -> None:
        """The same failure again is no news."""
        if str(self.last_error) != str(error):
            log.warning("watch failed resource=%s error=%s", self.resource.group_resource, error)
        self.last_error = error

    async def _close_stream(self) -> None:
        self._stream = None
        await self._stream_scope.aclose()


def _version_is_ahead(error: ApiError) -> bool:
    """The server is behind the resourceVersion we hold (its storage was restored): only a list mends it."""
    if any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes):
        return True
    return "Too large resource version" in str(error)
