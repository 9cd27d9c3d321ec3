"""One stored object behind several versions of its kind, and behind both event APIs.

Versions of a CRD differ in `apiVersion` alone (conversion strategy `None`). events.k8s.io renames the fields
of core Events, which is how they are stored.
"""

from __future__ import annotations

from localcluster.apiserver.store import Stored
from localcluster.json_text import dumps
from localcluster.resource import JSON, ResourceType

NEW_EVENTS = "events.k8s.io"
CORE_EVENTS = "events"

_STORED_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_SHOWN_EVENT_FIELDS = {stored: shown for shown, stored in _STORED_EVENT_FIELDS.items()}


def collection_of(resource_type: ResourceType) -> str:
    """Return the collection in which the objects of a type are stored."""
    if resource_type.group == NEW_EVENTS and resource_type.plural == CORE_EVENTS:
        return CORE_EVENTS
    return resource_type.group_resource


def to_stored(resource_type: ResourceType, obj: JSON) -> JSON:
    """An object of the type in the form in which it is stored."""
    if resource_type.group != NEW_EVENTS:
        return obj
    renamed = {_STORED_EVENT_FIELDS.get(key, key): value for key, value in obj.items()}
    return {**renamed, "apiVersion": "v1"}


def shown_object(resource_type: ResourceType, obj: JSON) -> JSON:
    """A stored object as the type shows it. The same object where there is nothing to change."""
    if obj.get("apiVersion") == resource_type.api_version:
        return obj
    if resource_type.group == NEW_EVENTS:
        obj = {_SHOWN_EVENT_FIELDS.get(key, key): value for key, value in obj.items()}
    return {**obj, "apiVersion": resource_type.api_version}


def shown(resource_type: ResourceType, stored: Stored) -> Stored:
    """Like `shown_object`, with the serialized form."""
    obj = shown_object(resource_type, stored.obj)
    return stored if obj is stored.obj else Stored(obj, dumps(obj), stored.version)
