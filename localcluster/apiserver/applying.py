"""PATCH by server-side apply."""

from __future__ import annotations

from datetime import datetime

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.decoding import check_object
from localcluster.apiserver.errors import bad_request, invalid, required, unsupported_media_type
from localcluster.apiserver.rbac import Attributes
from localcluster.apiserver.requests import Context, options_type
from localcluster.apiserver.times import rfc3339
from localcluster.apiserver.versions import shown_object
from localcluster.apiserver.writes import Written, create, update
from localcluster.apply import server_side_apply
from localcluster.builtin import component_of, components
from localcluster.schema_nodes import reference_to

_SENTENCE = (
    "this cluster has server-side apply of built-in kinds alone, and with force (kubectl's "
    "--force-conflicts): use `kubectl apply` without --server-side, or a merge patch"
)


def apply(cluster: Cluster, context: Context, body: object, now: datetime) -> Written:
    """Set the fields in `body`, drop those that their manager no longer names; create a missing object."""
    resource_type, manager = context.type, context.query.get("fieldManager")
    if resource_type.custom or context.subresource or not context.flag("force"):
        raise unsupported_media_type(_SENTENCE)
    if not manager:
        fault = required("fieldManager", "is required for apply patch")
        raise invalid(options_type("PatchOptions"), "", [fault])
    manifest = check_object(resource_type, body)
    if manifest["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if manifest["metadata"].setdefault("name", context.name) != context.name:
        raise bad_request("the name of the object does not match the name on the URL")
    current = cluster.get(resource_type, context.namespace, context.name)
    live = {"metadata": {}} if current is None else shown_object(resource_type, current.obj)
    entry = {"manager": manager, "operation": "Apply", "apiVersion": resource_type.api_version}
    schema = reference_to(component_of(resource_type))
    obj, managed = server_side_apply(live, manifest, {**entry, "time": rfc3339(now)}, schema, components())
    if current is not None:
        return update(cluster, context, current, {**obj, "metadata": dict(obj["metadata"])}, managed)
    target = context.target
    creation = Attributes("create", target.group, target.plural, namespace=target.namespace)
    cluster.authorizer.authorize(context.user, creation)
    return create(cluster, context, obj, now, managed)
