"""The Scale of an object, over the paths that its kind names.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource
"""

from __future__ import annotations

from typing import Any

from localcluster.resource import JSON, ResourceType

SCALE_API = "autoscaling/v1"
SCALE_TYPE = ResourceType("autoscaling", "v1", "Scale", "scales", "scale")


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


def with_replicas(resource_type: ResourceType, obj: JSON, replicas: int) -> JSON:
    """The same object, with so many replicas asked for."""
    return _with_value(obj, _path(resource_type, "specReplicasPath"), replicas)


def _with_value(obj: JSON, path: tuple[str, ...], value: int) -> JSON:
    """The object, with a value at a path whose parents are made where they are missing."""
    parent = obj
    for part in path[:-1]:
        parent = parent.setdefault(part, {})
    parent[path[-1]] = value
    return obj
