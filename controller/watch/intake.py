"""Intake of an informer: reads objects into its store, and notifies handlers.

The store has what the kind's shape keeps of each object. An object beyond the shape's limits, or without
room in its namespace's share, is unreadable: it counts as absent, and is reported. A large text waits
while its namespace has no time left (`controller/shares.py`); only the newest of several about one object
is read.
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
"""Size of a text that is always read at once."""
MOST_WAITING_BYTES = 32 << 20
"""Maximum size of waiting texts; beyond it, the oldest ones are read."""
MOST_UNREADABLE, MOST_IN_A_NAMESPACE = 5_000, 1_000
"""Maximum unreadable objects that are remembered and reported; beyond the first number, the second per
namespace."""
LIST_AGAIN_SECONDS = 300.0
"""Minimum seconds between a list and a new one for refused objects."""
_NAMELESS: Key = (None, "")


class _Waiting(NamedTuple):
    """Event that is read later."""

    event: WatchEvent
    units: int
    size_bytes: int


class Intake:
    """Intake of one resource. Shared by all controllers."""

    def __init__(
        self,
        resource: Resource,
        shape: Shape,
        shares: Shares,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.store = Store()
        self.unreadable: dict[Key, UnreadableObject] = {}
        """Objects of the API server that are not in the store, because they cannot be read."""
        self._resource = resource
        self._shape = shape
        self._shares = shares
        self._monotonic = monotonic
        self._handlers: list[Handler] = []
        self._unreadable_handlers: list[UnreadableHandler] = []
        self._units: dict[Key, int] = {}
        """Units of each namespaced object that is kept."""
        self._refused: dict[str, int] = {}
        """Units of the smallest object refused for lack of room since the last list, by namespace."""
        self._listed_at = monotonic()
        self._waiting: dict[Key, _Waiting] = {}
        """Newest event about each object whose namespace has no time left."""

    # --- handlers ---

    def add_handler(self, handler: Handler) -> None:
        """Call `handler` for every change from now on."""
        self._handlers.append(handler)

    def remove_handler(self, handler: Handler) -> None:
        """Stop calling `handler`."""
        self._handlers.remove(handler)

    def add_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Call `handler` from now on for every unreadable object, each time it is seen."""
        self._unreadable_handlers.append(handler)

    def remove_unreadable_handler(self, handler: UnreadableHandler) -> None:
        """Stop calling `handler`, if it was added."""
        if handler in self._unreadable_handlers:
            self._unreadable_handlers.remove(handler)

    async def tell_all(self, handler: Handler) -> None:
        """Call `handler` for every existing object, as if it had just appeared."""
        slices = Slices()
        for known in self.store.list():
            obj = self.store.get(*key_of(known))
            if obj is not None:
                self._tell_one(handler, Change(None, obj))
            await slices.pause()

    def tell(self, change: Change | None) -> None:
        """Call all handlers for a change, if there is one."""
        if change is not None:
            for handler in self._handlers:
                self._tell_one(handler, change)

    def _tell_one(self, handler: Handler, change: Change) -> None:
        """Call one handler; its failure must neither cost the others their event nor end the watch."""
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
        """Process an event, or let it wait; return its resourceVersion."""
        named = self._shape.identity(event.object)
        key = (named.namespace or None, named.name or "")
        if event.type == "DELETED" or not self._waits(key, event, line):
            self._waiting.pop(key, None)
            self._take(event, key, named.resourceVersion)
        return named.resourceVersion

    def seconds_to_next(self) -> float:
        """Return the seconds until a waiting event can be read; infinite if none waits."""
        now = self._monotonic()
        return min((self._shares.wait_seconds(key[0] or "", now) for key in self._waiting), default=inf)

    async def take_due(self) -> None:
        """Read waiting events whose namespace has time again, and those beyond the limit."""
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
        """Return whether a large text has to wait; otherwise charge its time to the namespace."""
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
        """Return whether this version, or a newer one, is in the store, as after an own write."""
        stored = self.store.get(*key)
        if stored is None:
            return False
        mine, known = version_number(version), version_number(stored["metadata"].get("resourceVersion"))
        return mine is not None and known is not None and mine <= known

    # --- objects ---

    def read(self, found: Parts | Object) -> Object:
        """Return what is kept of an object, after charging it to its namespace.

        Raises:
            CannotBeRead: it exceeds the limits for reading, or there is no room.
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
        except Exception as error:  # from an index function
            self._skip(UnreadableObject(self._named(found), salvage.reason_of(error)))
        else:
            self.unreadable.pop(key, None)
            self.tell(change)

    def delete(self, found: Parts | Object, key: Key) -> None:
        """Remove an object, readable or not."""
        self.unreadable.pop(key, None)
        try:
            change = self.store.delete(self._kept(found))
        except CannotBeRead as error:
            change = self.store.remove(key)
            if not error.found.has_name:
                self._note_unreadable(error.found)
        except Exception:  # from an index function
            change = self.store.remove(key)
        self._release(key)
        self.tell(change)

    async def read_all(self, items: list[Parts | Object]) -> tuple[list[Object], list[UnreadableObject]]:
        """Return what is kept of the objects of one page, and the unreadable ones. Empties the list."""
        kept, unreadable, slices = list[Object](), list[UnreadableObject](), Slices()
        items.reverse()
        while items:  # each is freed at once, since much less of it may be kept
            item = items.pop()
            try:
                kept.append(self._stored(item) or self.read(item))
            except CannotBeRead as error:
                unreadable.append(error.found)
            await slices.pause()
        return kept, unreadable

    def begin_list(self) -> None:
        """Forget waiting events and refused objects, which a new list brings again."""
        self._waiting.clear()
        self._refused.clear()
        self._listed_at = self._monotonic()

    async def replace(self, items: list[Object], unreadable: list[UnreadableObject]) -> None:
        """Replace the content of the store by that of a list."""
        self.unreadable, slices = {}, Slices()
        for change in self.store.replace_stepwise(items, self._note_refused):
            self.tell(change)
            await slices.pause()
        for key in [key for key in self._units if self.store.get(*key) is None]:
            self._release(key)
        for found in unreadable:
            self._skip(found)

    def wants_list(self) -> bool:
        """Return whether there is room by now for refused objects."""
        if not self._refused or self._monotonic() - self._listed_at < LIST_AGAIN_SECONDS:
            return False
        return any(self._shares.has_room(*each) for each in self._refused.items())

    def _stored(self, item: Parts | Object) -> Object | None:
        """Return the stored object if it has the same version, so that the item need not be read."""
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
        """Treat an unreadable object as absent until it can be read again."""
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
