"""The garbage collector: what becomes of objects whose owners are gone or going.

It remembers who owns what by uid. An object goes when none of its owners exists any more; owners that wait
for their dependents (foreground deletion) go when the last one that blocks them has gone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.deletion import (
    BACKGROUND,
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    Propagation,
    delete,
    finished,
)
from localcluster.apiserver.store import ChangeType, Event, Stored
from localcluster.client.clock import utc_now
from localcluster.resource import JSON

Place = tuple[str, str, str]
"""(collection, namespace, name)"""


def owners_of(obj: JSON) -> list[JSON]:
    return obj["metadata"].get("ownerReferences") or []


def awaits_dependents(obj: JSON) -> bool:
    """Whether an owner is being deleted in the foreground."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND_FINALIZER in (
        metadata.get("finalizers") or ()
    )


def needs_collector(obj: JSON) -> bool:
    """Whether a finalizer of the collector's own holds the object back."""
    metadata = obj["metadata"]
    finalizers = metadata.get("finalizers") or ()
    ours = FOREGROUND_FINALIZER in finalizers or ORPHAN_FINALIZER in finalizers
    return bool(metadata.get("deletionTimestamp")) and ours


class GarbageCollector:
    """Watches every change in the store."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._places: dict[str, Place] = {}
        self._dependents: defaultdict[str, set[Place]] = defaultdict(set)
        for collection in cluster.store.collections():
            for key, stored in collection.objects.items():
                self._learn((collection.name, *key), None, stored.obj)
        cluster.store.observers.append(self._observe)

    def _observe(self, event: Event) -> None:
        place: Place = (event.collection, *event.key)
        before = event.before.obj if event.before else None
        self._learn(place, before, None if event.type is ChangeType.DELETED else event.now.obj)

    def _learn(self, place: Place, before: JSON | None, now: JSON | None) -> None:
        old_owners = owners_of(before) if before else []
        new_owners = owners_of(now) if now else []
        if old_owners != new_owners:
            self._relink(place, old_owners, new_owners)
            if new_owners:
                self._cluster.deferred.add(self._collect, place)
        if now is None and before is not None:
            uid = before["metadata"]["uid"]
            self._places.pop(uid, None)
            for dependent in self._dependents.get(uid, ()):
                self._cluster.deferred.add(self._collect, dependent)
        elif now is not None:
            self._places[now["metadata"]["uid"]] = place
            if needs_collector(now):
                self._cluster.deferred.add(self._release_owner, place)

    def _relink(self, place: Place, old_owners: list[JSON], new_owners: list[JSON]) -> None:
        for owner in old_owners:
            uid = owner["uid"]
            self._dependents[uid].discard(place)
            if not self._dependents[uid]:
                del self._dependents[uid]
            if (owner_place := self._places.get(uid)) is not None:
                self._cluster.deferred.add(self._release_owner, owner_place)
        for owner in new_owners:
            self._dependents[owner["uid"]].add(place)

    def _collect(self, place: Place) -> None:
        """Delete an object without owners, or take from it the references to owners that are gone."""
        stored = self._cluster.store.get(*place)
        if stored is None or stored.obj["metadata"].get("deletionTimestamp"):
            return
        resource_type = self._cluster.type_of(stored.obj)
        owners = owners_of(stored.obj)
        if resource_type is None or not owners:
            return
        present = [(owner, self._owner(owner, place[1])) for owner in owners]
        alive = [owner for owner, found in present if found is None or not awaits_dependents(found.obj)]
        alive = [owner for owner in alive if self._exists(owner, place[1])]
        if alive:
            if len(alive) < len(owners):
                self._rewrite_owners(place, stored, alive)
            return
        waited_for = any(found is not None and awaits_dependents(found.obj) for _, found in present)
        uid = stored.obj["metadata"]["uid"]
        options = replace(BACKGROUND, uid=uid)
        if waited_for and self._dependents.get(uid):
            options = replace(options, propagation=Propagation.FOREGROUND)
        delete(self._cluster, resource_type, stored, options, utc_now())

    def _owner(self, owner: JSON, namespace: str) -> Stored | None:
        owner_type = self._cluster.type_of(owner)
        if owner_type is None:
            return None
        found = self._cluster.get(owner_type, namespace if owner_type.namespaced else "", owner["name"])
        return found if found is not None and found.obj["metadata"]["uid"] == owner["uid"] else None

    def _exists(self, owner: JSON, namespace: str) -> bool:
        """An owner of a kind that is not served is given the benefit of the doubt."""
        return self._cluster.type_of(owner) is None or self._owner(owner, namespace) is not None

    def _rewrite_owners(self, place: Place, stored: Stored, owners: list[JSON]) -> None:
        obj = stored.copy()
        obj["metadata"]["ownerReferences"] = owners
        if not owners:
            del obj["metadata"]["ownerReferences"]
        self._cluster.store.put(place[0], obj)

    def _release_owner(self, place: Place) -> None:
        """Do for an owner that is being deleted what its finalizers ask, and let it go."""
        stored = self._cluster.store.get(*place)
        if stored is None or not needs_collector(stored.obj):
            return
        uid = stored.obj["metadata"]["uid"]
        finalizers = stored.obj["metadata"]["finalizers"]
        dependents = self._existing(uid)
        if ORPHAN_FINALIZER in finalizers:
            for dependent_place, dependent in dependents:
                kept = [owner for owner in owners_of(dependent.obj) if owner["uid"] != uid]
                self._rewrite_owners(dependent_place, dependent, kept)
            self._drop_finalizer(place, ORPHAN_FINALIZER)
            return
        for dependent_place, _ in dependents:
            self._cluster.deferred.add(self._collect, dependent_place)
        if not any(_blocks(dependent.obj, uid) for _, dependent in dependents):
            self._drop_finalizer(place, FOREGROUND_FINALIZER)

    def _existing(self, uid: str) -> list[tuple[Place, Stored]]:
        found = ((place, self._cluster.store.get(*place)) for place in sorted(self._dependents.get(uid, ())))
        return [(place, stored) for place, stored in found if stored is not None]

    def _drop_finalizer(self, place: Place, finalizer: str) -> None:
        stored = self._cluster.store.get(*place)
        if stored is None:
            return
        resource_type = self._cluster.type_of(stored.obj)
        obj = stored.copy()
        metadata = obj["metadata"]
        metadata["finalizers"] = [each for each in metadata["finalizers"] if each != finalizer]
        if not metadata["finalizers"]:
            del metadata["finalizers"]
        if resource_type is not None and finished(resource_type, obj):
            self._cluster.store.remove(resource_type.group_resource, place[1], place[2], obj)
        else:
            self._cluster.store.put(place[0], obj)


def _blocks(dependent: JSON, owner_uid: str) -> bool:
    return any(
        owner["uid"] == owner_uid and owner.get("blockOwnerDeletion") for owner in owners_of(dependent)
    )
