"""Drives one reflector: performs what it wants, keeps the store, tells the handlers, backs off.

The only place that waits. Its body, `advance`, does one ask and can be tested; the endless loop around
it is three lines.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson

from controller import clock, salvage
from controller.api.pages import MOST_WHOLE_BYTES, PageSize
from controller.api.transport import WatchStream
from controller.backoff import Backoff
from controller.client import Client
from controller.errors import ApiError, PageTooLarge, SilentWatch, TimedOut, Unavailable
from controller.resources import Object, Resource
from controller.salvage import Unreadable
from controller.slices import Slices
from controller.store import Change, Key, Store, key_of, version_number
from controller.watch import reflector
from controller.watch.reflector import (
    Answer,
    Broke,
    Ended,
    FetchPage,
    Idled,
    Opened,
    OpenWatch,
    Page,
    ReadStream,
    Streamed,
)

log = logging.getLogger(__name__)

Handler = Callable[[Change], None]
Shape = Callable[[Object], Object]
"""Makes of an object what is kept of it, and leaves the object itself as it is. An object for which it raises
cannot be read."""
UnreadableHandler = Callable[[Resource, Unreadable], None]
_NAMELESS: Key = (None, "")


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
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        timing: WatchTiming | None = None,
    ) -> None:
        self.resource = resource
        self.store = Store()
        self.synced = asyncio.Event()
        self.last_error: ApiError | None = None
        self.unreadable: dict[Key, Unreadable] = {}
        """Objects that the API server has and the store has not, since they cannot be read."""
        self.progressed_at = clock.monotonic()
        """When the store was last known to be as the API server's collection."""
        self._client = client
        self._namespace = namespace if resource.namespaced else None
        self._label_selector = label_selector
        self._timing = timing or WatchTiming()
        self._handlers: list[Handler] = []
        self._unreadable_handlers: list[UnreadableHandler] = []
        self._shape: Shape | None = None
        self._pages = PageSize()
        self._state: reflector.State = reflector.Empty()
        self._stream: WatchStream | None = None
        self._stream_brought_news = False
        self._opened_at = 0.0
        self._stream_scope = AsyncExitStack()
        base_seconds = self._timing.backoff_base_seconds
        self._refused = Backoff(base_seconds, self._timing.backoff_cap_seconds)
        self._away = Backoff(base_seconds, self._timing.away_cap_seconds)

    def add_handler(self, handler: Handler) -> None:
        """Call `handler` for every change from now on."""
        self._handlers.append(handler)

    def add_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Tells `handler` from now on of every object that cannot be read, as often as it is seen."""
        self._unreadable_handlers.append(handler)

    def keep_only(self, shape: Shape) -> None:
        """Keeps of each object what `shape` makes of it. Before the first list."""
        self._shape = shape

    async def tell_all(self, handler: Handler) -> None:
        """Tells `handler` of every object there is, as if it had just appeared."""
        slices = Slices()
        for known in self.store.list():
            obj = self.store.get(*key_of(known))
            if obj is not None:
                self._tell(handler, Change(None, obj))
            await slices.pause()

    def note_write(self, obj: Object) -> None:
        """Takes over what the server answered to a write of this process, ahead of the watch.

        So the next look decides from its own last write, and does not conflict with it. What the watch has
        shown already is left alone, or an object that is gone since would come back.
        """
        if salvage.strange_parts(obj) is not None:
            return
        written, seen = version_number(obj["metadata"].get("resourceVersion")), self._seen_version
        if written is None or seen is None or written <= seen or not self._is_watched(obj):
            return
        self._apply(obj)

    @property
    def _seen_version(self) -> int | None:
        """Up to where the store is complete; None while it is being filled."""
        if isinstance(self._state, reflector.Listed | reflector.Watching):
            return version_number(self._state.resource_version)
        return None

    def _is_watched(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        if self._namespace is not None and metadata.get("namespace") != self._namespace:
            return False
        labels = metadata.get("labels") or {}
        wanted = dict(term.split("=") for term in (self._label_selector or "").split(",") if term)
        return wanted.items() <= labels.items()

    def list_again(self) -> None:
        """`run`, which must have ended, begins with a list. Until that is there, the store stays as it is."""
        self._state = reflector.Empty()
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
        """One ask and what follows from it; returns the seconds to wait before the next."""
        wait_seconds = self.resource.gather_seconds if isinstance(self._state, reflector.Watching) else 0.0
        answers, slices = await self._ask(reflector.want(self._state)), Slices()
        for each in answers:
            answer = await _read_line(each) if isinstance(each, bytes) else each
            before = self._state
            events, state = reflector.step(before, answer)
            for event in events:
                await self._take(event, slices)
            self._state = state
            self._note_progress(before, answer)
            failure = next((event.error for event in events if isinstance(event, reflector.Failed)), None)
            wait_seconds = self._wait_seconds(before, failure)
            if not isinstance(state, reflector.Watching):
                await self._close_stream()
                break
            await slices.pause()
        return wait_seconds

    def _note_progress(self, before: reflector.State, answer: Answer) -> None:
        """A watch that is opened is none yet; one that ends at once may have had no time to tell anything."""
        match answer:
            case Page() | Idled():
                self.progressed_at = clock.monotonic()
            case Streamed() if isinstance(self._state, reflector.Watching):
                self.progressed_at = clock.monotonic()
            case Ended() if isinstance(before, reflector.Watching) and self._was_useful():
                self.progressed_at = clock.monotonic()

    def _wait_seconds(self, before: reflector.State, failure: ApiError | None) -> float:
        """After a failure; after a watch that was refused; and after one that was of no use, or a server
        that ends every watch at once would be asked in a tight loop."""
        if isinstance(before, reflector.Empty | reflector.Paging):
            return 0.0 if failure is None else self._after(failure)
        if isinstance(self._state, reflector.Watching):
            self._stream_brought_news = isinstance(before, reflector.Watching)
            return self.resource.gather_seconds
        if isinstance(before, reflector.Listed):
            return self._after(failure)
        if self._was_useful():
            self._reset_backoffs()
            return 0.0 if failure is None else self._after(failure)
        return self._refused.next_seconds()

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
        return self._stream_brought_news and not isinstance(self._state, reflector.Empty)

    async def _ask(self, want: reflector.Want) -> Sequence[Answer | bytes]:
        """What came; of a stream, its lines."""
        try:
            match want:
                case FetchPage():
                    return [await self._fetch_fitting(want)]
                case OpenWatch(resource_version):
                    return [await self._open(resource_version)]
                case ReadStream():
                    return await self._read()
        except ApiError as error:
            return [Broke(error)]

    async def _fetch_fitting(self, want: FetchPage) -> Answer:
        """The page, asked for in smaller ones as long as it is too large."""
        while True:
            try:
                return await self._fetch(want)
            except PageTooLarge as error:
                if not want.paged:
                    raise
                self._pages.too_large(error)
            except TimedOut:
                self._pages.timed_out()
                raise

    async def _fetch(self, want: FetchPage) -> Answer:
        page = await self._client.list_page(
            self.resource,
            self._namespace,
            label_selector=self._label_selector,
            page_size=self._pages.limit if want.paged else None,
            continue_token=want.continue_token,
            most_bytes=self._pages.most_bytes if want.paged else MOST_WHOLE_BYTES,
        )
        await asyncio.sleep(0)  # parsing it took a while
        unreadable: list[Unreadable] = list(page.get("unreadable") or ())
        raw_items: list[Object] = page["items"]
        self._pages.arrived(len(raw_items) + len(unreadable), page.get("bytes", 0))
        items, slices = [], Slices()
        raw_items.reverse()
        while raw_items:  # each goes at once, since what is kept of it may be much less
            raw = raw_items.pop()
            try:
                if (reason := salvage.strange_parts(raw)) is not None:
                    raise _CannotBeRead(Unreadable(salvage.named(raw), reason))
                items.append(self._kept(raw))
            except _CannotBeRead as error:
                unreadable.append(error.found)
            await slices.pause()
        metadata = page.get("metadata") or {}
        version = str(metadata.get("resourceVersion") or "0")
        return Page(tuple(items), version, metadata.get("continue") or None, tuple(unreadable))

    async def _open(self, resource_version: str) -> Answer:
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
        return Opened()

    async def _read(self) -> Sequence[Answer | bytes]:
        assert self._stream is not None
        try:
            lines = await self._stream.lines(self._timing.idle_timeout_seconds)
        except SilentWatch:
            return [Idled()]
        if lines is None:
            return [Ended()]
        return [line for line in lines if line]

    async def _take(self, event: reflector.Event, slices: Slices) -> None:
        match event:
            case reflector.Replaced(items, unreadable):
                await self._replace(items, unreadable, slices)
                self.synced.set()
            case reflector.Applied(obj):
                self._apply(obj)
            case reflector.Deleted(obj):
                self._delete(obj)
            case reflector.Skipped(found):
                self._skip(found)
            case reflector.Failed(error):
                self._note(error)
                return
        self.last_error = None

    async def _replace(
        self, items: Sequence[Object], unreadable: Sequence[Unreadable], slices: Slices
    ) -> None:
        self.unreadable = {}
        for change in self.store.replace_stepwise(items, self._note_refused):
            self._tell_handlers(change)
            await slices.pause()
        for found in unreadable:
            self._skip(found)

    def _note_refused(self, obj: Object, error: Exception) -> None:
        self._note_unreadable(Unreadable(salvage.named(obj), salvage.reason_of(error)))

    def _apply(self, obj: Object) -> None:
        try:
            change = self.store.apply(self._kept(obj))
        except _CannotBeRead as error:
            self._skip(error.found)
        except Exception as error:  # an index function's
            self._skip(Unreadable(salvage.named(obj), salvage.reason_of(error)))
        else:
            self.unreadable.pop(key_of(obj), None)
            self._tell_handlers(change)

    def _delete(self, obj: Object) -> None:
        """Removes the object, also one that cannot be read."""
        self.unreadable.pop(key_of(obj), None)
        try:
            change = self.store.delete(self._kept(obj))
        except Exception:
            change = self.store.remove(key_of(obj))
        self._tell_handlers(change)

    def _skip(self, found: Unreadable) -> None:
        """It is as if it were not there, until it can be read again."""
        self._note_unreadable(found)
        if found.has_name:
            self._tell_handlers(self.store.remove(key_of(found.obj)))

    def _note_unreadable(self, found: Unreadable) -> None:
        key = key_of(found.obj) if found.has_name else _NAMELESS
        if key not in self.unreadable:
            name = "/".join(filter(None, key)) or "without a name"
            log.warning("skipped resource=%s object=%s: %s", self.resource.group_resource, name, found.reason)
        self.unreadable[key] = found
        for handler in self._unreadable_handlers:
            try:
                handler(self.resource, found)
            except Exception:
                log.exception("handler failed resource=%s object=%s", self.resource.group_resource, key)

    def _kept(self, obj: Object) -> Object:
        """What the store keeps of an object that has no strange parts.

        Raises:
            _CannotBeRead: its shape is beyond what can be handled.
        """
        if self._shape is None:
            return self._trimmed(obj)
        try:
            return self._shape(self._trimmed(obj))
        except Exception as error:
            raise _CannotBeRead(Unreadable(salvage.named(obj), salvage.reason_of(error))) from error

    def _trimmed(self, obj: Object) -> Object:
        if not self.resource.keeps_managed_fields:
            obj["metadata"].pop("managedFields", None)
        return obj

    def _note(self, error: ApiError) -> None:
        """The same failure again is no news."""
        if str(self.last_error) != str(error):
            log.warning("watch failed resource=%s error=%s", self.resource.group_resource, error)
        self.last_error = error

    def _tell_handlers(self, change: Change | None) -> None:
        if change is not None:
            for handler in self._handlers:
                self._tell(handler, change)

    def _tell(self, handler: Handler, change: Change) -> None:
        """A handler that fails must not cost the others their event, nor end the watch."""
        try:
            handler(change)
        except Exception:
            metadata = change.current.get("metadata", {})
            log.exception(
                "handler failed resource=%s object=%s/%s",
                self.resource.group_resource,
                metadata.get("namespace"),
                metadata.get("name"),
            )

    async def _close_stream(self) -> None:
        self._stream = None
        await self._stream_scope.aclose()


class _CannotBeRead(Exception):
    def __init__(self, found: Unreadable) -> None:
        super().__init__(found.reason)
        self.found = found


async def _read_line(line: bytes) -> Answer:
    is_cut = False
    try:
        event = salvage.parsed(line)
    except orjson.JSONDecodeError as error:
        try:
            event = await salvage.parsed_shallow(line)
        except orjson.JSONDecodeError:
            return Broke(reflector.UnexpectedAnswer(f"a watch line that is not JSON: {error}"))
        is_cut = True
    if not isinstance(event, dict):
        return Broke(reflector.UnexpectedAnswer(f"a watch line that is a {type(event).__name__}"))
    return Streamed(event, is_cut)
