"""What an informer reads into its store, and those who want to hear of it.

Of each object the store has what the kind's shape keeps. An object beyond the shape's bounds, or for which
its namespace has no room left, is unreadable: it is as if it were not there, and is reported. A large text
waits while its namespace has no time (`controller/shares.py`); of several about one object the newest is
read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import msgspec

from controller import clock, salvage
from controller.errors import ApiError
from controller.resources import Object, Resource
from controller.salvage import UnreadableObject
from controller.shape import CannotBeRead, Parts, Shape, WatchEvent, units, units_of
from controller.shares import LARGE_UNITS, Shares
from controller.slices import Slices
from controller.store import Change, Key, Store, key_of, version_number

log = logging.getLogger(__name__)

Handler = Callable[[Change], None]
UnreadableHandler = Callable[[Resource, UnreadableObject], None]

SMALL_BYTES = 4096
"""Text that is read at once, whatever it is."""
MOST_WAITING_BYTES = 32 << 20
"""Text that waits; beyond it, what waits longest is read."""
MOST_UNREADABLE, MOST_IN_A_NAMESPACE = 5_000, 1_000
"""Unreadable objects that are remembered and reported; beyond the first, of each namespace the second."""
LIST_AGAIN_SECONDS = 300.0
"""Time after a list in which objects that were refused are not asked for again."""
_NAMELESS: Key = (None, "")


class _Waiting(NamedTuple):
    """An event that is read later."""

    event: WatchEvent
    units: int
    size_bytes: int


class Intake:
    """One resource's store. Shared by all controllers."""

    def __init__(
        self,
        resource: Resource,
        shape: Shape,
        shares: Shares,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.store = Store()
        self.unreadable: dict[Key, UnreadableObject] = {}
        """Objects that the API server has and the store has not, since they cannot be read."""
        self._resource = resource
        self._shape = shape
        self._shares = shares
        self._monotonic = monotonic
        self._handlers: list[Handler] = []
        self._unreadable_handlers: list[UnreadableHandler] = []
        self._units: dict[Key, int] = {}
        """Units of each object that is kept, of those in a namespace."""
        self._refused: dict[str, int] = {}
        """Units of the smallest object for which there was no room since the last list, by namespace."""
        self._listed_at = monotonic()
        self._waiting: dict[Key, _Waiting] = {}
        """The newest event about each object whose namespace has no time for it."""

    # --- who hears of it ---

    def add_handler(self, handler: Handler) -> None:
        """Call `handler` for every change from now on."""
        self._handlers.append(handler)

    def remove_handler(self, handler: Handler) -> None:
        """Call it no more."""
        self._handlers.remove(handler)

    def add_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Call `handler` from now on for every object that cannot be read, as often as it is seen."""
        self._unreadable_handlers.append(handler)

    def remove_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Call it no more, if it was called."""
        if handler in self._unreadable_handlers:
            self._unreadable_handlers.remove(handler)

    async def tell_all(self, handler: Handler) -> None:
        """Call `handler` for every object there is, as if it had just appeared."""
        slices = Slices()
        for known in self.store.list():
            obj = self.store.get(*key_of(known))
            if obj is not None:
                self._tell_one(handler, Change(None, obj))
            await slices.pause()

    def tell(self, change: Change | None) -> None:
        """Call all handlers for a change, if it is one."""
        if change is not None:
            for handler in self._handlers:
                self._tell_one(handler, change)

    def _tell_one(self, handler: Handler, change: Change) -> None:
        """A handler that fails must not cost the others their event, nor end the watch."""
        try:
            handler(change)
        except Exception:
            metadata = change.current.get("metadata", {})
            log.exception(
                "handler failed resource=%s object=%s/%s",
                self._resource.group_resource,
                metadata.get("namespace"),
                metadata.get("name"),
            )

    # --- events ---

    async def event_of(self, line: bytes) -> WatchEvent:
        """Split a line of a watch.

        Raises:
            ApiError: it tells of an error, or makes no sense.
        """
        try:
            try:
                return self._shape.event(line)
            except RecursionError:
                return self._shape.event(await asyncio.to_thread(salvage.shallow, line))
        except msgspec.MsgspecError as error:
            raise ApiError(f"a watch line that is no event of an object: {error}") from error

    def receive(self, event: WatchEvent, line: bytes) -> str | None:
        """Take in an event, or have it wait; return the resourceVersion that it brings."""
        named = self._shape.identity(event.object)
        key = (named.namespace or None, named.name or "")
        if event.type == "DELETED" or not self._waits(key, event, line):
            self._waiting.pop(key, None)
            self._take(event, key, named.resourceVersion)
        return named.resourceVersion

    def seconds_to_next(self) -> float:
        """Time until something that waits can be read; infinite if nothing waits."""
        now = self._monotonic()
        return min((self._shares.wait_seconds(key[0] or "", now) for key in self._waiting), default=inf)

    async def take_due(self) -> None:
        """Read what has waited and has time now, or no place to wait."""
        slices, total = Slices(), sum(each.size_bytes for each in self._waiting.values())
        for key, each in list(self._waiting.items()):
            now = self._monotonic()
            if self._shares.wait_seconds(key[0] or "", now) <= 0 or total > MOST_WAITING_BYTES:
                del self._waiting[key]
                total -= each.size_bytes
                self._shares.spend(key[0] or "", each.units, now)
                self._take(each.event, key, self._shape.identity(each.event.object).resourceVersion)
                await slices.pause()

    def _waits(self, key: Key, event: WatchEvent, line: bytes) -> bool:
        """Whether a large text has to wait; one that has not has used time of its namespace."""
        if key[0] is None or len(line) <= SMALL_BYTES or (counted := units(line)) <= LARGE_UNITS:
            return False
        if key not in self._waiting and self._shares.wait_seconds(key[0], self._monotonic()) <= 0:
            self._shares.spend(key[0], counted, self._monotonic())
            return False
        self._waiting[key] = _Waiting(event, counted, len(line))
        return True

    def _take(self, event: WatchEvent, key: Key, version: str | None) -> None:
        if event.type == "DELETED":
            self.delete(event.object, key)
        elif not self._is_known(key, version):
            self.apply(event.object, key)

    def _is_known(self, key: Key, version: str | None) -> bool:
        """Whether this version, or a newer one, is in the store, as after an own write."""
        stored = self.store.get(*key)
        if stored is None:
            return False
        mine, known = version_number(version), version_number(stored["metadata"].get("resourceVersion"))
        return mine is not None and known is not None and mine <= known

    # --- objects ---

    def read(self, found: Parts | Object) -> Object:
        """What is kept of an object, for which its namespace has room.

        Raises:
            CannotBeRead: it is beyond what can be read, or there is no room.
        """
        kept = self._kept(found)
        key = key_of(kept)
        if key[0] is not None:
            self._admit(key, kept)
        return kept

    def apply(self, found: Parts | Object, key: Key) -> None:
        """Put an object into the store."""
        try:
            change = self.store.apply(self.read(found))
        except CannotBeRead as error:
            self._skip(error.found)
        except Exception as error:  # an index function's
            self._skip(UnreadableObject(self._named(found), salvage.reason_of(error)))
        else:
            self.unreadable.pop(key, None)
            self.tell(change)

    def delete(self, found: Parts | Object, key: Key) -> None:
        """Remove an object, also one that cannot be read."""
        self.unreadable.pop(key, None)
        try:
            change = self.store.delete(self._kept(found))
        except CannotBeRead as error:
            change = self.store.remove(key)
            if not error.found.has_name:
                self._note_unreadable(error.found)
        except Exception:  # an index function's
            change = self.store.remove(key)
        self._release(key)
        self.tell(change)

    async def read_all(self, items: list[Parts | Object]) -> tuple[list[Object], list[UnreadableObject]]:
        """What is kept of the objects of one page, and those that cannot be read. Empties the list."""
        kept, unreadable, slices = list[Object](), list[UnreadableObject](), Slices()
        items.reverse()
        while items:  # each goes at once, since what is kept of it may be much less
            item = items.pop()
            try:
                kept.append(self._stored(item) or self.read(item))
            except CannotBeRead as error:
                unreadable.append(error.found)
            await slices.pause()
        return kept, unreadable

    def begin_list(self) -> None:
        """Forget what a list brings anew: what waits, and who was refused."""
        self._waiting.clear()
        self._refused.clear()
        self._listed_at = self._monotonic()

    async def replace(self, items: list[Object], unreadable: list[UnreadableObject]) -> None:
        """Swap the content of the store for that of a list."""
        self.unreadable, slices = {}, Slices()
        for change in self.store.replace_stepwise(items, self._note_refused):
            self.tell(change)
            await slices.pause()
        for key in [key for key in self._units if self.store.get(*key) is None]:
            self._release(key)
        for found in unreadable:
            self._skip(found)

    def wants_list(self) -> bool:
        """Whether objects that were refused would have room by now."""
        if not self._refused or self._monotonic() - self._listed_at < LIST_AGAIN_SECONDS:
            return False
        return any(self._shares.has_room(*each) for each in self._refused.items())

    def _stored(self, item: Parts | Object) -> Object | None:
        """The object in the store, if it is of the same version: then nothing of the item need be read."""
        if isinstance(item, dict):
            return None
        named = self._shape.identity(item)
        stored = self.store.get(named.namespace or None, named.name or "")
        same = stored is not None and stored["metadata"].get("resourceVersion") == named.resourceVersion
        return stored if same else None

    def _kept(self, found: Parts | Object) -> Object:
        kept = self._shape.take(found) if isinstance(found, dict) else self._shape.read(found)
        return self._resource.named(kept)

    def _named(self, found: Parts | Object) -> Object:
        return salvage.named(found) if isinstance(found, dict) else self._shape.names_of(found)

    def _admit(self, key: Key, kept: Object) -> None:
        namespace = key[0] or ""
        try:
            counted = units_of(kept)
        except TypeError as error:
            raise CannotBeRead(UnreadableObject(salvage.named(kept), salvage.reason_of(error))) from error
        if not self._shares.take(namespace, self._units.get(key, 0), counted):
            self._refused[namespace] = min(counted, self._refused.get(namespace, counted))
            reason = (
                f"the objects of namespace {namespace} have {self._shares.used.get(namespace, 0)} of the "
                f"{self._shares.limit(namespace, counted)} values that dlr keeps of a namespace, and this "
                f"one has {counted} more"
            )
            raise CannotBeRead(UnreadableObject(salvage.named(kept), reason))
        self._units[key] = counted

    def _release(self, key: Key) -> None:
        if self.store.get(*key) is None and (counted := self._units.pop(key, 0)):
            self._shares.take(key[0] or "", counted, 0)

    def _note_refused(self, obj: Object, error: Exception) -> None:
        self._note_unreadable(UnreadableObject(salvage.named(obj), salvage.reason_of(error)))

    def _skip(self, found: UnreadableObject) -> None:
        """It is as if it were not there, until it can be read again."""
        self._note_unreadable(found)
        if found.has_name:
            key = key_of(found.obj)
            change = self.store.remove(key)
            self._release(key)
            self.tell(change)

    def _note_unreadable(self, found: UnreadableObject) -> None:
        key = key_of(found.obj) if found.has_name else _NAMELESS
        if key not in self.unreadable:
            is_crowded = len(self.unreadable) >= MOST_UNREADABLE
            if is_crowded and sum(other[0] == key[0] for other in self.unreadable) >= MOST_IN_A_NAMESPACE:
                return
            name = "/".join(filter(None, key)) or "without a name"
            log.warning(
                "skipped resource=%s object=%s: %s", self._resource.group_resource, name, found.reason
            )
        self.unreadable[key] = found
        for handler in self._unreadable_handlers:
            try:
                handler(self._resource, found)
            except Exception:
                log.exception("handler failed resource=%s object=%s", self._resource.group_resource, key)
