"""One stored object behind several versions of its kind, which differ in `apiVersion` alone."""

from __future__ import annotations

from localcluster.apiserver.store import Stored
from localcluster.json_text import dumps
from localcluster.resource import JSON, ResourceType


def shown_object(resource_type: ResourceType, obj: JSON) -> JSON:
    """A stored object as the type shows it. The same object where there is nothing to change."""
    if obj.get("apiVersion") == resource_type.api_version:
        return obj
    return {**obj, "apiVersion": resource_type.api_version}


def shown(resource_type: ResourceType, stored: Stored) -> Stored:
    """Like `shown_object`, with the serialized form."""
    obj = shown_object(resource_type, stored.obj)
    return stored if obj is stored.obj else Stored(obj, dumps(obj), stored.version)
