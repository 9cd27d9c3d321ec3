"""The scale subresource: `autoscaling/v1` Scale over the paths that a kind names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.errors import bad_request, invalid, invalid_value
from localcluster.apiserver.requests import Context
from localcluster.apiserver.versions import shown_object
from localcluster.apiserver.writes import Written, current_object, update
from localcluster.resource import JSON, ResourceType

SCALE_API = "autoscaling/v1"


def read_scale(cluster: Cluster, context: Context) -> JSON:
    current = current_object(cluster, context)
    return scale_of(context.type, shown_object(context.type, current.obj))


def write_scale(cluster: Cluster, context: Context, change: Callable[[JSON], Any]) -> JSON:
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
    path = _path(context.type, "specReplicasPath")
    scaled = _with_value(orjson.loads(orjson.dumps(obj)), path, replicas)
    asked = scale.get("metadata") or {}
    for name in ("resourceVersion", "uid"):
        if asked.get(name):
            scaled["metadata"][name] = asked[name]
    written: Written = update(cluster, context, current, scaled)
    return scale_of(context.type, written.stored.obj)


def scale_of(resource_type: ResourceType, obj: JSON) -> JSON:
    """The Scale of an object."""
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: JSON = {"replicas": _value_at(obj, _path(resource_type, "statusReplicasPath")) or 0}
    selector = _value_at(obj, _path(resource_type, "labelSelectorPath"))
    if isinstance(selector, dict):
        selector = ",".join(f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items())
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": SCALE_API,
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": _value_at(obj, _path(resource_type, "specReplicasPath")) or 0},
        "status": status,
    }


def _path(resource_type: ResourceType, name: str) -> tuple[str, ...]:
    path = (resource_type.scale or {}).get(name) or ""
    return tuple(part for part in path.split(".") if part)


def _value_at(obj: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return None
    for part in path:
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _with_value(obj: JSON, path: tuple[str, ...], value: int) -> JSON:
    """The object, with a value at a path whose parents are made where they are missing."""
    parent = obj
    for part in path[:-1]:
        parent = parent.setdefault(part, {})
    parent[path[-1]] = value
    return obj


SCALE_TYPE = ResourceType("autoscaling", "v1", "Scale", "scales", "scale")
