"""PATCH by server-side apply."""

from __future__ import annotations

from datetime import datetime

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.decoding import check_object
from localcluster.apiserver.errors import (
    apply_conflict,
    bad_request,
    invalid,
    not_found,
    required,
)
from localcluster.apiserver.ownership import schema_of, writer_of
from localcluster.apiserver.rbac import Attributes
from localcluster.apiserver.requests import Context, options_type
from localcluster.apiserver.versions import shown_object
from localcluster.apiserver.writes import Written, create, update
from localcluster.apply import ApplyConflict, server_side_apply
from localcluster.builtin import components
from localcluster.client.clock import timestamp
from localcluster.resource import JSON


def apply(cluster: Cluster, context: Context, body: object, now: datetime) -> Written:
    """Set the fields in `body`, drop those that their manager no longer names; create a missing object."""
    resource_type = context.type
    if not context.query.get("fieldManager"):
        fault = required("fieldManager", "is required for apply patch")
        raise invalid(options_type("PatchOptions"), "", [fault])
    manifest = check_object(resource_type, body)
    if manifest["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if manifest["metadata"].setdefault("name", context.name) != context.name:
        raise bad_request("the name of the object does not match the name on the URL")
    current = cluster.get(resource_type, context.namespace, context.name)
    if current is None and context.subresource:
        raise not_found(resource_type, context.name)
    live = {"metadata": {}} if current is None else shown_object(resource_type, current.obj)
    obj, owners = _applied(context, live, manifest, now)
    if current is not None:
        return update(cluster, context, current, {**obj, "metadata": dict(obj["metadata"])}, now, owners)
    target = context.target
    creation = Attributes("create", target.group, target.plural, namespace=target.namespace)
    cluster.authorizer.authorize(context.user, creation)
    return create(cluster, context, obj, now, owners)


def _applied(context: Context, live: JSON, manifest: JSON, now: datetime) -> tuple[JSON, list[JSON]]:
    force, schema = context.flag("force"), schema_of(context.type)
    try:
        return server_side_apply(
            live, manifest, writer_of(context), timestamp(now), schema, components(), force=force
        )
    except ApplyConflict as conflict:
        raise apply_conflict(str(conflict), conflict.causes) from None
