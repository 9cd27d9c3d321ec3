"""Namespaces: what each is born with, and how one that is deleted is emptied."""

from __future__ import annotations

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.deletion import BACKGROUND, delete, finished
from localcluster.apiserver.errors import forbidden, not_found
from localcluster.apiserver.metadata import begin_life
from localcluster.apiserver.store import ChangeType, Event
from localcluster.client.clock import utc_now
from localcluster.resource import JSON, ResourceType

NAMESPACES = "namespaces"
SERVICE_ACCOUNTS = "serviceaccounts"
CONFIG_MAPS = "configmaps"
INITIAL_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
DEFAULT_SERVICE_ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
_OWN_FINALIZER = "kubernetes"


def prepare(obj: JSON) -> None:
    """Complete a new namespace."""
    obj.setdefault("spec", {})["finalizers"] = [_OWN_FINALIZER]
    obj["status"] = {"phase": "Active"}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def check_accepts(cluster: Cluster, resource_type: ResourceType, namespace: str, name: str) -> None:
    """Refuse to create an object in a namespace that is missing or going."""
    stored = cluster.store.get(NAMESPACES, "", namespace)
    if stored is None:
        namespace_type = cluster.registry.lookup("", "v1", NAMESPACES)
        assert namespace_type is not None
        raise not_found(namespace_type, namespace)
    if stored.obj["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        error = forbidden(resource_type, name, why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        error.details["causes"] = [cause]
        raise error


class NamespaceController:
    """Keeps the default ServiceAccount and the CA in every namespace; empties those that are deleted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        for name in INITIAL_NAMESPACES:
            if cluster.store.get(NAMESPACES, "", name) is None:
                self._create(NAMESPACES, "Namespace", "", name, {})
        for (_, name), _stored in cluster.store.select(NAMESPACES, None):
            cluster.deferred.add(self._settle, name)
        cluster.store.observers.append(self._observe)

    def _observe(self, event: Event) -> None:
        namespace, name = event.key
        if event.collection == NAMESPACES and event.type is not ChangeType.DELETED:
            self._cluster.deferred.add(self._settle, name)
        elif event.type is ChangeType.DELETED and namespace:
            self._cluster.deferred.add(self._settle, namespace)

    def _settle(self, name: str) -> None:
        stored = self._cluster.store.get(NAMESPACES, "", name)
        if stored is None:
            return
        if stored.obj["metadata"].get("deletionTimestamp"):
            self._empty(name)
            return
        for collection, kind, obj_name, content in (
            (SERVICE_ACCOUNTS, "ServiceAccount", DEFAULT_SERVICE_ACCOUNT, {}),
            (CONFIG_MAPS, "ConfigMap", ROOT_CA, {"data": {"ca.crt": self._cluster.ca_certificate}}),
        ):
            if self._cluster.store.get(collection, name, obj_name) is None:
                self._create(collection, kind, name, obj_name, content)

    def _create(self, collection: str, kind: str, namespace: str, name: str, content: JSON) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        obj: JSON = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}
        begin_life(metadata, utc_now())
        if kind == "Namespace":
            prepare(obj)
        self._cluster.store.put(collection, obj)

    def _empty(self, name: str) -> None:
        """Delete what is left in a namespace; when nothing is, let the namespace itself go."""
        empty = True
        for collection in self._cluster.store.collections():
            for key, stored in self._cluster.store.select(collection.name, name):
                empty = False
                resource_type = self._cluster.type_of(stored.obj)
                if resource_type is None:
                    self._cluster.store.remove(collection.name, *key)
                elif not stored.obj["metadata"].get("deletionTimestamp"):
                    delete(self._cluster, resource_type, stored, BACKGROUND, utc_now())
        if empty:
            self._finish(name)
        # Otherwise each deletion that completes in the namespace brings us back here.

    def _finish(self, name: str) -> None:
        stored = self._cluster.store.get(NAMESPACES, "", name)
        resource_type = self._cluster.registry.lookup("", "v1", NAMESPACES)
        if stored is None or resource_type is None:
            return
        obj = stored.copy()
        obj.setdefault("spec", {})["finalizers"] = []
        if finished(resource_type, obj):
            self._cluster.store.remove(resource_type.group_resource, "", name, obj)
        else:
            self._cluster.store.put(NAMESPACES, obj)
