"""The controller of CustomResourceDefinitions: keeps the registry as they say, and cleans up after them."""

from __future__ import annotations

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.crds import CLEANUP_FINALIZER, DEFINITIONS, accepted_status, types_of
from localcluster.apiserver.deletion import BACKGROUND, delete, finished
from localcluster.apiserver.store import ChangeType, Event, Stored
from localcluster.client.clock import utc_now
from localcluster.resource import JSON, ResourceKey, ResourceType


class DefinitionController:
    """Serves a definition's kinds the moment it is stored, and deletes their objects before it goes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        for _, stored in cluster.store.select(DEFINITIONS, None):
            self._serve(stored.obj)
            cluster.deferred.add(self._settle, stored.obj["metadata"]["name"])
        cluster.store.observers.append(self._observe)

    def _observe(self, event: Event) -> None:
        if event.collection == DEFINITIONS:
            self._follow(event)
        elif event.type is ChangeType.DELETED:
            definition = self._cluster.store.get(DEFINITIONS, "", event.collection)
            if definition is not None and definition.obj["metadata"].get("deletionTimestamp"):
                self._cluster.deferred.add(self._settle, event.collection)

    def _follow(self, event: Event) -> None:
        before = _keys(event.before.obj) if event.before else set()
        if event.type is ChangeType.DELETED:
            now: set[ResourceKey] = set()
        else:
            now = _keys(event.now.obj)
            if event.before is None or event.before.obj["spec"] != event.now.obj["spec"]:
                self._serve(event.now.obj)
            self._cluster.deferred.add(self._settle, event.key[1])
        for key in before - now:
            self._cluster.registry.remove(key)

    def _serve(self, definition: JSON) -> None:
        for resource_type in types_of(definition):
            self._cluster.registry.add(resource_type)
            self._complete(resource_type)

    def _complete(self, resource_type: ResourceType) -> None:
        """Show what was stored before by the schema of now: with its defaults, without what it dropped."""
        collection = resource_type.group_resource
        for key, stored in self._cluster.store.select(collection, None):
            if stored.obj["apiVersion"] == resource_type.api_version:
                completed, _ = self._cluster.schemas.prepare(resource_type, stored.obj, None)
                if completed != stored.obj:
                    self._cluster.store.restate(collection, key, completed)

    def _settle(self, name: str) -> None:
        """Accept a definition's names; delete the objects of one that is going, and then it."""
        definition = self._cluster.store.get(DEFINITIONS, "", name)
        if definition is None:
            return
        if not definition.obj["metadata"].get("deletionTimestamp"):
            self._accept(definition)
            return
        left = self._cluster.store.select(name, None)
        for key, stored in left:
            resource_type = self._cluster.type_of(stored.obj)
            if resource_type is None:
                self._cluster.store.remove(name, *key)
            elif not stored.obj["metadata"].get("deletionTimestamp"):
                delete(self._cluster, resource_type, stored, BACKGROUND, utc_now())
        if not self._cluster.store.select(name, None):
            self._release(name)

    def _accept(self, definition: Stored) -> None:
        """Keep the status true to a spec that was changed."""
        obj = definition.copy()
        status = obj.get("status") or {}
        accepted = accepted_status(obj, utc_now())
        stored_versions = list(
            dict.fromkeys([*(status.get("storedVersions") or ()), *accepted["storedVersions"]])
        )
        if (status.get("acceptedNames"), status.get("storedVersions")) != (
            accepted["acceptedNames"],
            stored_versions,
        ):
            conditions = status.get("conditions") or accepted["conditions"]
            obj["status"] = {**accepted, "storedVersions": stored_versions, "conditions": conditions}
            self._cluster.store.put(DEFINITIONS, obj)

    def _release(self, name: str) -> None:
        definition = self._cluster.store.get(DEFINITIONS, "", name)
        resource_type = self._cluster.registry.by_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        if definition is None or resource_type is None:
            return
        obj = definition.copy()
        finalizers = obj["metadata"].get("finalizers") or []
        obj["metadata"]["finalizers"] = [each for each in finalizers if each != CLEANUP_FINALIZER]
        if finished(resource_type, obj):
            self._cluster.store.remove(DEFINITIONS, "", name, obj)
        elif len(obj["metadata"]["finalizers"]) < len(finalizers):
            self._cluster.store.put(DEFINITIONS, obj)


def _keys(definition: JSON) -> set[ResourceKey]:
    return {resource_type.key for resource_type in types_of(definition)}
