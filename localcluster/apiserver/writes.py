"""Creating and changing objects: the one path that every write takes.

Between reading the present object and storing the next one nothing awaits, so no write ever loses another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from localcluster.apiserver import admission, crds, namespaces, pods, policies, secret_data
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.decoding import cannot_be_handled, check_object, report_unknown_fields
from localcluster.apiserver.deletion import finished
from localcluster.apiserver.errors import (
    already_exists,
    bad_request,
    cause,
    conflict,
    invalid,
    modified_meanwhile,
    not_found,
    required,
)
from localcluster.apiserver.metadata import (
    begin_life,
    carry_over,
    metadata_faults,
    random_name,
    tidy,
    update_faults,
)
from localcluster.apiserver.ownership import owners_after, set_owners
from localcluster.apiserver.policies import Operation
from localcluster.apiserver.requests import Context
from localcluster.apiserver.store import Stored, at_version
from localcluster.apiserver.versions import shown_object
from localcluster.field_errors import Reason
from localcluster.json_text import dumps
from localcluster.resource import JSON, ResourceType

NAME_ATTEMPTS = 8
_WITH_GENERATION = frozenset(
    {"pods", "deployments.apps", "replicasets.apps", "poddisruptionbudgets.policy"}
    | {crds.DEFINITIONS, "networkpolicies.networking.k8s.io", policies.POLICIES, policies.BINDINGS}
)
_CREATED_WITH_STATUS = frozenset({"nodes"})
_VERSION_REQUIRED_GROUPS = frozenset({"coordination.k8s.io"})


@dataclass(frozen=True)
class Written:
    """The outcome of a write."""

    stored: Stored
    created: bool = False


def has_generation(resource_type: ResourceType) -> bool:
    return resource_type.custom or resource_type.group_resource in _WITH_GENERATION


def create(
    cluster: Cluster, context: Context, body: object, now: datetime, managed_fields: Sequence[JSON] = ()
) -> Written:
    """Create an object from a request's body."""
    resource_type = context.type
    obj = check_object(resource_type, body)
    if obj["metadata"].get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    _settle_place(cluster, context, obj["metadata"])
    begin_life(obj["metadata"], now)
    set_owners(obj["metadata"], managed_fields)
    if has_generation(resource_type):
        obj["metadata"]["generation"] = 1
    if context.namespace:
        namespaces.check_accepts(cluster, resource_type, context.namespace, obj["metadata"]["name"])
    obj = _prepare(cluster, context, obj, None)
    if "status" in resource_type.subresources and resource_type.group_resource not in _CREATED_WITH_STATUS:
        obj.pop("status", None)
    tidy(obj["metadata"])
    faults = metadata_faults(resource_type, obj["metadata"])
    faults += _schema_faults(cluster, resource_type, obj, None) or admission.create_faults(resource_type, obj)
    if faults:
        raise invalid(resource_type, obj["metadata"]["name"], faults)
    admission.mutate_new(cluster, resource_type, obj)
    admission.check(cluster, context, Operation.CREATE, obj, None)
    metadata = obj["metadata"]
    if cluster.get(resource_type, context.namespace, metadata["name"]) is not None:
        raise already_exists(resource_type, metadata["name"])
    if context.dry_run():
        return Written(Stored(obj, dumps(obj), 0), created=True)
    return Written(cluster.store.put(resource_type.group_resource, obj), created=True)


def _settle_place(cluster: Cluster, context: Context, metadata: JSON) -> None:
    """The namespace comes from the path, the name from the body or its `generateName`."""
    resource_type = context.type
    if metadata.get("namespace", "") not in ("", context.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata.pop("namespace", None)
    if context.namespace:
        metadata["namespace"] = context.namespace
    if metadata.get("name"):
        return
    prefix = metadata.get("generateName")
    if not prefix:
        raise invalid(resource_type, "", [required("metadata.name", "name or generateName is required")])
    for _ in range(NAME_ATTEMPTS):
        metadata["name"] = random_name(prefix)
        if cluster.get(resource_type, context.namespace, metadata["name"]) is None:
            return
    raise already_exists(resource_type, metadata["name"])


def _prepare(cluster: Cluster, context: Context, obj: JSON, old: JSON | None) -> JSON:
    """Add defaults, and take out what the schema does not know."""
    if context.type.group_resource == "pods":
        obj = pods.completed(obj, old)
    elif context.type.group_resource == "secrets":
        obj = secret_data.completed(obj)
    elif context.type.group_resource == crds.DEFINITIONS:
        obj = crds.completed(obj)
    prepared, unknown = cluster.schemas.prepare(context.type, obj, old)
    report_unknown_fields(context, unknown)
    return prepared


def replace(cluster: Cluster, context: Context, body: object, now: datetime) -> Written:
    """PUT: the body is what the object shall be."""
    obj = check_object(context.type, body)
    metadata = obj["metadata"]
    if metadata.get("name", "") not in ("", context.name):
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({context.name})"
        )
    if metadata.get("namespace", "") not in ("", context.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    current = current_object(cluster, context)
    needs_version = context.type.custom or context.type.group in _VERSION_REQUIRED_GROUPS
    if needs_version and not metadata.get("resourceVersion"):
        message = 'Invalid value: "": must be specified for an update'
        fault = cause("metadata.resourceVersion", "FieldValueInvalid", message)
        raise invalid(context.type, context.name, [fault])
    return update(cluster, context, current, obj, now)


def patch(cluster: Cluster, context: Context, apply: Callable[[JSON], JSON], now: datetime) -> Written:
    """PATCH: `apply` makes the next object of the present one, which it leaves as it is."""
    current = current_object(cluster, context)
    shown = shown_object(context.type, current.obj)
    patched = check_object(context.type, apply(shown))
    for field in ("name", "namespace"):
        if patched["metadata"].get(field, "") != shown["metadata"].get(field, ""):
            raise bad_request(f"metadata.{field} cannot be changed by a patch")
    return update(cluster, context, current, patched, now)


def current_object(cluster: Cluster, context: Context) -> Stored:
    current = cluster.get(context.type, context.namespace, context.name)
    if current is None:
        raise not_found(context.type, context.name)
    return current


def update(
    cluster: Cluster,
    context: Context,
    current: Stored,
    obj: JSON,
    now: datetime,
    managed_fields: Sequence[JSON] | None = None,
) -> Written:
    """Store the next state of an object. `obj` and its metadata are the caller's to give away.

    Args:
        managed_fields: who owns its fields then, if the caller knows.
    """
    resource_type = context.type
    old = shown_object(resource_type, current.obj)
    _check_identity(resource_type, old["metadata"], obj["metadata"])
    obj = _isolate_status(context, old, obj)
    carry_over(old["metadata"], obj["metadata"])
    obj["metadata"]["name"] = old["metadata"]["name"]
    if context.namespace:
        obj["metadata"]["namespace"] = context.namespace
    obj = _prepare(cluster, context, obj, old)
    tidy(obj["metadata"])
    if managed_fields is None:
        managed_fields = owners_after(context, old, obj, now)
    set_owners(obj["metadata"], managed_fields)
    if obj == old:
        admission.check(cluster, context, Operation.UPDATE, obj, old)  # who may not write it is not shown it
        return Written(current)
    if has_generation(resource_type) and _specifies_else(resource_type, old, obj):
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    faults = [
        *metadata_faults(resource_type, obj["metadata"]),
        *update_faults(old["metadata"], obj["metadata"]),
    ]
    faults += _schema_faults(cluster, resource_type, obj, old) or admission.update_faults(
        resource_type, old, obj, context.subresource
    )
    if faults:
        raise invalid(resource_type, context.name, faults)
    admission.check(cluster, context, Operation.UPDATE, obj, old)
    if context.dry_run():
        return Written(at_version(obj, current.version))
    collection = resource_type.group_resource
    if finished(resource_type, obj):
        return Written(cluster.store.remove(collection, context.namespace, context.name, obj))
    return Written(cluster.store.put(collection, obj))


def _schema_faults(cluster: Cluster, resource_type: ResourceType, obj: JSON, old: JSON | None) -> list[JSON]:
    """Kubernetes reads its own kinds into typed structures: a wrong type there is a bad request."""
    faults = cluster.schemas.faults(resource_type, obj, old)
    mistyped = [fault for fault in faults if fault["reason"] == Reason.TYPE_INVALID.cause]
    if resource_type.custom or not mistyped:
        return faults
    named = ", ".join(f"{fault['field']}: {fault['message']}" for fault in mistyped)
    raise bad_request(f"{cannot_be_handled(resource_type)}: {named}")


def _check_identity(resource_type: ResourceType, old: JSON, new: JSON) -> None:
    """The writer must have seen the present version, if it names one, of this very object."""
    if new.get("resourceVersion") not in (None, "", old["resourceVersion"]):
        raise modified_meanwhile(resource_type, old["name"])
    if new.get("uid") not in (None, "", old["uid"]):
        why = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        raise conflict(resource_type, old["name"], why)


def _isolate_status(context: Context, old: JSON, obj: JSON) -> JSON:
    """Writes to an object leave its status alone, and writes to its status everything else."""
    if "status" not in context.type.subresources:
        return obj
    if context.subresource == "status":
        isolated = {**old, "metadata": dict(old["metadata"])}
        source = obj
    else:
        isolated, source = obj, old
    if "status" in source:
        isolated["status"] = source["status"]
    else:
        isolated.pop("status", None)
    return isolated


def _specifies_else(resource_type: ResourceType, old: JSON, new: JSON) -> bool:
    """Whether anything but metadata and status changed."""
    status_apart = "status" in resource_type.subresources
    ignored = {"metadata", "status"} if status_apart else {"metadata"}
    return any(new.get(key) != old.get(key) for key in (old.keys() | new.keys()) - ignored)
