"""Local copy of one collection, with indexes.

Objects are shared by all readers: never change one. Every mutation returns its changes, so that handlers
that were notified of an object are also notified when it vanished during a gap in the watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from controller.resources import Object

IndexFunction = Callable[[Object], Iterable[str]]
Key = tuple[str | None, str]
"""Namespace (None for cluster-scoped resources) and name."""
Objects: TypeAlias = list[Object]
IndexKeys: TypeAlias = list[str]


@dataclass(frozen=True)
class Change:
    """Change of an object: it appeared (`old` is None), changed, or disappeared (`new` is None)."""

    old: Object | None
    new: Object | None

    @property
    def current(self) -> Object:
        """Newest state of the object; the last one if it is gone."""
        obj = self.new if self.new is not None else self.old
        assert obj is not None
        return obj


def key_of(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace") or None, metadata["name"]


V = TypeVar("V")


class ObjectMemory(Generic[V]):
    """Values by uid for the objects of a store, removed with the object."""

    def __init__(self, uids: dict[str, Key]) -> None:
        self._uids = uids
        self._values: dict[str, V] = {}
        self.get: Callable[[str], V | None] = self._values.get
        """Look-up by uid. It is the dictionary's own method, since a reconcile may call it 10,000 times."""

    def __len__(self) -> int:
        return len(self._values)

    def put(self, uid: str, value: V) -> V:
        """Store and return `value`, which is kept only while the store has an object with that uid.

        Other threads than the store's may call it, so the check comes last.
        """
        self._values[uid] = value
        if uid not in self._uids:
            self.forget(uid)
        return value

    def forget(self, uid: str) -> None:
        self._values.pop(uid, None)


class Store:
    """Objects of one collection; only the informer that owns the store writes it."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._uids: dict[str, Key] = {}
        self._memories: list[ObjectMemory[Any]] = []
        self._functions: dict[str, IndexFunction] = {"namespace": _namespace_index}
        self._indexes: dict[str, dict[str, dict[Key, Object]]] = {"namespace": {}}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str | None, name: str) -> Object | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str | None = None) -> Objects:
        """Return all objects, or those of one namespace."""
        if namespace is None:
            return list(self._objects.values())
        return self.by_index("namespace", namespace)

    def by_index(self, index_name: str, key: str) -> Objects:
        return list(self._indexes[index_name].get(key, {}).values())

    def count(self, index_name: str, key: str) -> int:
        """Return the number of objects that `by_index` returns, in constant time."""
        return len(self._indexes[index_name].get(key, ()))

    def add_index(self, index_name: str, function: IndexFunction) -> None:
        """Add an index; `function` returns the keys of an object, and must be pure."""
        if self._functions.get(index_name, function) is not function:
            raise ValueError(f"there is another index called {index_name!r}")
        self._functions[index_name] = function
        self._indexes[index_name] = {}
        for key, obj in self._objects.items():
            self._index(index_name, function(obj), key, obj)

    def memory(self) -> ObjectMemory[Any]:
        """Return a new, empty memory."""
        self._memories.append(ObjectMemory(self._uids))
        return self._memories[-1]

    def replace_stepwise(
        self, items: Iterable[Object], refused: Callable[[Object, Exception], None] | None = None
    ) -> Iterator[Change | None]:
        """Replace the whole content object by object; objects not in `items` are removed. Yields None for no
        change.

        Each step happens when the iterator advances, so that thousands need not happen at once.

        Args:
            refused: called with each object for which an index function raises, and the error; the object is
                removed. If it is None, the error is raised.
        """
        before: set[Key] = {*self._objects}
        fresh: dict[Key, Object] = {}
        for obj in items:
            fresh[key_of(obj)] = obj
            yield None
        for key in before.difference(fresh):
            yield self._remove(key)
        for key, obj in fresh.items():
            old = self._objects.get(key)
            if old is not None and _version(old) == _version(obj):
                yield None
                continue
            change: Change | None
            try:
                change = self._put(key, obj)
            except Exception as error:
                if refused is None:
                    raise
                refused(obj, error)
                change = self.remove(key)
            yield change

    def apply(self, obj: Object) -> Change | None:
        """Store an object; return None if this version, or a newer one, is already stored, as after an own
        write.

        An error of an index function leaves the store unchanged.
        """
        key = key_of(obj)
        stored = self._objects.get(key)
        if stored is not None and not is_newer(obj, than=stored):
            return None
        return self._put(key, obj)

    def delete(self, obj: Object) -> Change | None:
        """Remove an object; return None if it is not stored, or was replaced by another one."""
        key = key_of(obj)
        stored = self._objects.get(key)
        if stored is None or is_newer(stored, than=obj):
            return None
        self._put(key, obj)
        return self._remove(key)

    def remove(self, key: Key) -> Change | None:
        """Remove the object with this key; return None if there is none."""
        return self._remove(key) if key in self._objects else None

    def _put(self, key: Key, obj: Object) -> Change:
        keys = self._index_keys(obj)
        old = self._objects.get(key)
        if old is not None and _uid(old) != _uid(obj):
            self._forget(old)
        self._unindex(key)
        for index_name, index_keys in keys.items():
            self._index(index_name, index_keys, key, obj)
        self._objects[key] = obj
        self._uids[_uid(obj)] = key
        return Change(old, obj)

    def _remove(self, key: Key) -> Change:
        self._unindex(key)
        old = self._objects.pop(key)
        self._forget(old)
        return Change(old, None)

    def _forget(self, obj: Object) -> None:
        uid = _uid(obj)
        self._uids.pop(uid, None)
        for memory in self._memories:
            memory.forget(uid)

    def _index_keys(self, obj: Object) -> dict[str, IndexKeys]:
        """Return the keys of an object, by index.

        Raises:
            TypeError: a key is not hashable.
        """
        keys = {index_name: [*function(obj)] for index_name, function in self._functions.items()}
        for index_keys in keys.values():
            hash(tuple(index_keys))
        return keys

    def _index(self, index_name: str, index_keys: Iterable[str], key: Key, obj: Object) -> None:
        for index_key in index_keys:
            self._indexes[index_name].setdefault(index_key, {})[key] = obj

    def _unindex(self, key: Key) -> None:
        old = self._objects.get(key)
        if old is None:
            return
        for index_name, function in self._functions.items():
            index = self._indexes[index_name]
            for index_key in function(old):
                bucket = index.get(index_key)
                if bucket is not None and bucket.pop(key, None) is not None and not bucket:
                    del index[index_key]


def _namespace_index(obj: Object) -> Iterable[str]:
    namespace = obj["metadata"].get("namespace")
    return (namespace,) if namespace else ()


def is_newer(obj: Object, *, than: Object) -> bool:
    """Return whether `obj` is a later version than `than`; True if they cannot be compared.

    Versions of a resource are increasing numbers (Kubernetes API concepts, "Resource versions").
    """
    mine, other = version_number(_version(obj)), version_number(_version(than))
    return mine is None or other is None or mine > other


def version_number(resource_version: str | None) -> int | None:
    """Return the version as a number; None if it is none, which no Kubernetes server sends for kinds watched
    here."""
    return int(resource_version) if resource_version and resource_version.isdecimal() else None


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid", "")
    return uid


def _version(obj: Object) -> str | None:
    version: str | None = obj["metadata"].get("resourceVersion")
    return version
