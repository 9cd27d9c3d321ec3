"""Every object in memory, one version counter, and the recent past of each collection for watches.

Nothing here awaits: a handler that reads an object, decides and writes it back without awaiting in between
cannot race another. Each object is serialized once; the database, answers and all watches share those bytes.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from localcluster.apiserver.database import Database, Row
from localcluster.apiserver.errors import too_large_to_store
from localcluster.json_text import dumps, loads
from localcluster.resource import JSON

OBJECT_MAX_BYTES = 1536 * 1024
"""Limit of one request to etcd. A real cluster stores built-in kinds as protobuf, whose JSON may be twice as
long; only hostile objects are that large."""
HISTORY_MAX_EVENTS = 10_000
HISTORY_MAX_BYTES = 8 * 1024 * 1024

Key = tuple[str, str]
"""(namespace, name); the namespace of cluster-scoped objects is empty."""


class ChangeType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Stored:
    """One object at one version. `obj` is shared: never change it, take `copy()`."""

    obj: JSON
    raw: bytes
    version: int

    def copy(self) -> JSON:
        copied: JSON = loads(self.raw)
        return copied


@dataclass(slots=True)
class Event:
    """One change. For a deletion, `now` is the last state, at the version of the deletion."""

    type: ChangeType
    collection: str
    key: Key
    now: Stored
    before: Stored | None
    _lines: dict[ChangeType, bytes] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.now.version

    def line(self, as_type: ChangeType) -> bytes:
        """The line that watches send for it, made once for all of them."""
        made = self._lines.get(as_type)
        if made is None:
            made = self._lines[as_type] = event_line(as_type.value, self._sent(as_type).raw)
        return made

    def forget_lines(self) -> None:
        """Everybody has them: what history keeps need not be kept twice."""
        self._lines.clear()

    def _sent(self, as_type: ChangeType) -> Stored:
        if as_type is ChangeType.DELETED and self.type is ChangeType.MODIFIED and self.before is not None:
            # It left the watch's selection: the watch is shown what it knew, at the version of the change.
            return at_version(self.before.copy(), self.version)
        return self.now

    def sent_object(self, as_type: ChangeType) -> JSON:
        return self._sent(as_type).obj


def event_line(event_type: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (event_type.encode(), raw)


def at_version(obj: JSON, version: int) -> Stored:
    """Seal an object, which from now on belongs to the store."""
    obj["metadata"]["resourceVersion"] = str(version)
    return Stored(obj, dumps(obj), version)


class Subscriber(Protocol):
    """A watch. `deliver` must not block."""

    namespace: str | None
    name: str | None

    def deliver(self, event: Event) -> None: ...


class Collection:
    """All objects of one kind (in whatever version), their recent changes, and who watches them."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.objects: dict[Key, Stored] = {}
        self.history: deque[Event] = deque()
        self.complete_since = version
        """Changes after this version are all in `history`."""
        self._history_bytes = 0
        self._broad: dict[Subscriber, None] = {}
        self._by_name: defaultdict[str, dict[Subscriber, None]] = defaultdict(dict)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Watches of one name are found by it: hundreds of them cost nothing when another object changes."""
        by_name = self._broad if subscriber.name is None else self._by_name[subscriber.name]
        by_name[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber) -> None:
        if subscriber.name is None:
            self._broad.pop(subscriber, None)
        elif (by_name := self._by_name.get(subscriber.name)) is not None:
            by_name.pop(subscriber, None)
            if not by_name:
                del self._by_name[subscriber.name]

    def record(self, event: Event) -> None:
        self.history.append(event)
        self._history_bytes += len(event.now.raw)
        while len(self.history) > HISTORY_MAX_EVENTS or self._history_bytes > HISTORY_MAX_BYTES:
            dropped = self.history.popleft()
            self._history_bytes -= len(dropped.now.raw)
            self.complete_since = dropped.version
        for subscriber in tuple(self._broad):
            subscriber.deliver(event)
        for subscriber in tuple(self._by_name.get(event.key[1], ())):
            subscriber.deliver(event)
        event.forget_lines()

    def since(self, version: int) -> Iterator[Event] | None:
        """The changes after a version, or None when they are no longer all known."""
        if version < self.complete_since:
            return None
        recent: deque[Event] = deque()
        for event in reversed(self.history):
            if event.version <= version:
                break
            recent.appendleft(event)
        return iter(recent)


class Store:
    """The cluster's state. `observers` are called after every change, in order, before the writer goes on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.version = database.version()
        self._collections: dict[str, Collection] = {}
        self.observers: list[Callable[[Event], None]] = []
        for row in database.rows():
            stored = Stored(loads(row.raw), row.raw, row.version)
            self.collection(row.collection).objects[(row.namespace, row.name)] = stored

    def collection(self, name: str) -> Collection:
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = Collection(name, self.version)
        return found

    def collections(self) -> tuple[Collection, ...]:
        return tuple(self._collections.values())

    def get(self, collection: str, namespace: str, name: str) -> Stored | None:
        return self.collection(collection).objects.get((namespace, name))

    def select(self, collection: str, namespace: str | None) -> list[tuple[Key, Stored]]:
        """Return the objects in the order of lists: by namespace and name."""
        objects = self.collection(collection).objects
        if namespace is None:
            return sorted(objects.items(), key=lambda item: item[0])
        return sorted((item for item in objects.items() if item[0][0] == namespace), key=lambda item: item[0])

    def put(self, collection: str, obj: JSON) -> Stored:
        """Create or replace. The object belongs to the store from here on."""
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        into = self.collection(collection)
        before = into.objects.get(key)
        now = at_version(obj, self.version + 1)
        if len(now.raw) > OBJECT_MAX_BYTES:
            raise too_large_to_store()
        self._database.put(Row(collection, *key, now.version, now.raw))
        self.version = now.version
        into.objects[key] = now
        event_type = ChangeType.ADDED if before is None else ChangeType.MODIFIED
        self._announce(into, Event(event_type, collection, key, now, before))
        return now

    def remove(self, collection: str, namespace: str, name: str, last: JSON | None = None) -> Stored:
        """Delete an object that exists; `last` is its final state, where that differs from the stored one."""
        out_of = self.collection(collection)
        key = (namespace, name)
        before = out_of.objects[key]
        now = at_version(before.copy() if last is None else last, self.version + 1)
        self._database.delete(collection, namespace, name, now.version)
        self.version = now.version
        del out_of.objects[key]
        self._announce(out_of, Event(ChangeType.DELETED, collection, key, now, before))
        return now

    def restate(self, collection: str, key: Key, obj: JSON) -> None:
        """Show an object differently from now on. Nobody changed it, so its version stays, unannounced."""
        objects = self.collection(collection).objects
        objects[key] = Stored(obj, dumps(obj), objects[key].version)

    def _announce(self, collection: Collection, event: Event) -> None:
        collection.record(event)
        for observer in self.observers:
            observer(event)
