"""Deleting: at once, gracefully (Pods), or when the last finalizer is gone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from localcluster.apiserver.bodies import SUCCESS
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import (
    conflict,
    forbidden,
    invalid,
    invalid_value,
)
from localcluster.apiserver.requests import Context, options_type
from localcluster.apiserver.store import Stored
from localcluster.client.clock import timestamp
from localcluster.resource import JSON, ResourceType

FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
POD_GRACE_SECONDS = 30
_ANSWERED_WITH_OBJECT = ("pods", "namespaces", "serviceaccounts")
KEPT_NAMESPACES = ("default", "kube-system", "kube-public")


class Propagation(Enum):
    """Policy for the objects that the deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


_FINALIZERS = {Propagation.FOREGROUND: FOREGROUND_FINALIZER, Propagation.ORPHAN: ORPHAN_FINALIZER}


@dataclass(frozen=True)
class DeleteOptions:
    grace_period_seconds: int | None = None
    propagation: Propagation | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


BACKGROUND = DeleteOptions(propagation=Propagation.BACKGROUND)


@dataclass(frozen=True)
class Deleted:
    """The object's last or present state, and whether it is gone."""

    obj: JSON
    gone: bool


def read_options(
    body: JSON, query_grace: int | None, query_propagation: str | None, *, dry_run: bool
) -> DeleteOptions:
    """DeleteOptions from a request's body, else from its query."""
    preconditions = body.get("preconditions") or {}
    return DeleteOptions(
        grace_period_seconds=body.get("gracePeriodSeconds", query_grace),
        propagation=_propagation(body.get("propagationPolicy") or query_propagation),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=dry_run,
    )


def _propagation(text: str | None) -> Propagation | None:
    if not text:
        return None
    try:
        return Propagation(text)
    except ValueError:
        why = 'supported values: "Background", "Foreground", "Orphan"'
        fault = invalid_value("propagationPolicy", text, why)
        raise invalid(options_type("DeleteOptions"), "", [fault]) from None


def delete(
    cluster: Cluster, resource_type: ResourceType, stored: Stored, options: DeleteOptions, now: datetime
) -> Deleted:
    """Delete one object, or start to."""
    metadata = stored.obj["metadata"]
    check_preconditions(resource_type, metadata, options)
    if resource_type.group_resource == "namespaces" and metadata["name"] in KEPT_NAMESPACES:
        raise forbidden(resource_type, metadata["name"], "this namespace may not be deleted")
    marked = _marked(resource_type, stored, options, now)
    key = (metadata.get("namespace", ""), metadata["name"])
    gone = _may_go(resource_type, marked)
    if options.dry_run:
        return Deleted(marked, gone)
    collection = resource_type.group_resource
    if gone:
        return Deleted(cluster.store.remove(collection, *key).obj, gone=True)
    if marked == stored.obj:
        return Deleted(stored.obj, gone=False)
    return Deleted(cluster.store.put(collection, marked).obj, gone=False)


def finished(resource_type: ResourceType, obj: JSON) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    return bool(obj["metadata"].get("deletionTimestamp")) and _may_go(resource_type, obj)


def _may_go(resource_type: ResourceType, marked: JSON) -> bool:
    metadata = marked["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return resource_type.group_resource != "namespaces" or not (marked.get("spec") or {}).get("finalizers")


def check_preconditions(resource_type: ResourceType, metadata: JSON, options: DeleteOptions) -> None:
    for what, expected, actual in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"]),
    ):
        if expected is not None and expected != actual:
            why = f"Precondition failed: {what} in precondition: {expected}, {what} in object meta: {actual}"
            raise conflict(resource_type, metadata["name"], why)


def _marked(resource_type: ResourceType, stored: Stored, options: DeleteOptions, now: datetime) -> JSON:
    """The object with everything that says it is being deleted."""
    obj = stored.copy()
    metadata = obj["metadata"]
    grace = _grace_seconds(resource_type, obj, options)
    earlier = metadata.get("deletionGracePeriodSeconds")
    if not metadata.get("deletionTimestamp"):
        if "generation" in metadata:
            metadata["generation"] += 1
        metadata["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
    elif earlier is None or grace < earlier:
        metadata["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
    _mark_propagation(metadata, options.propagation)
    if resource_type.group_resource == "namespaces":
        obj.setdefault("status", {})["phase"] = "Terminating"
    return obj


def _grace_seconds(resource_type: ResourceType, obj: JSON, options: DeleteOptions) -> int:
    """Only Pods have a grace period, and only those that a kubelet may still be running."""
    if resource_type.group_resource != "pods":
        return 0
    if not obj["spec"].get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_period_seconds is not None:
        return options.grace_period_seconds if options.grace_period_seconds >= 0 else 1
    return int(obj["spec"].get("terminationGracePeriodSeconds", POD_GRACE_SECONDS))


def _mark_propagation(metadata: JSON, propagation: Propagation | None) -> None:
    if propagation is None:
        return
    wanted = _FINALIZERS.get(propagation)
    finalizers = [each for each in metadata.get("finalizers") or [] if each not in _FINALIZERS.values()]
    if wanted:
        finalizers.append(wanted)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def deletion_answer(context: Context, deleted: Deleted) -> JSON:
    """Return the answer to a DELETE: the object while it still exists, else a Status of success."""
    if not deleted.gone or context.type.group_resource in _ANSWERED_WITH_OBJECT:
        return deleted.obj
    details: JSON = {"name": context.name, "kind": context.type.plural, "uid": deleted.obj["metadata"]["uid"]}
    if context.type.group:
        details["group"] = context.type.group
    return {**SUCCESS, "details": details}
