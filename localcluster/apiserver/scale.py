"""The scale subresource, read and written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import bad_request, invalid, invalid_value
from localcluster.apiserver.requests import Context
from localcluster.apiserver.scale_object import SCALE_TYPE, scale_of, with_replicas
from localcluster.apiserver.versions import shown_object
from localcluster.apiserver.writes import Written, current_object, update
from localcluster.json_text import copied
from localcluster.resource import JSON


def read_scale(cluster: Cluster, context: Context) -> JSON:
    current = current_object(cluster, context)
    return scale_of(context.type, shown_object(context.type, current.obj))


def write_scale(cluster: Cluster, context: Context, change: Callable[[JSON], Any], now: datetime) -> JSON:
    """Set the replicas to what `change` makes of the present Scale."""
    current = current_object(cluster, context)
    obj = shown_object(context.type, current.obj)
    scale = change(scale_of(context.type, obj))
    if not isinstance(scale, dict) or not isinstance(scale.get("metadata") or {}, dict):
        raise bad_request("the body of the request is not a Scale")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request(f"spec.replicas must be a whole number, not {replicas!r}")
    if replicas < 0:
        fault = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(SCALE_TYPE, context.name, [fault])
    scaled = with_replicas(context.type, copied(obj), replicas)
    asked = scale.get("metadata") or {}
    for name in ("resourceVersion", "uid"):
        if asked.get(name):
            scaled["metadata"][name] = asked[name]
    written: Written = update(cluster, context, current, scaled, now)
    return scale_of(context.type, written.stored.obj)
