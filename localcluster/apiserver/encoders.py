"""How lists, single objects and watch events look to a client: objects, table rows, or bare metadata."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, cast

from localcluster.apiserver.errors import ApiError, bad_request
from localcluster.apiserver.representations import Representation
from localcluster.apiserver.requests import Context
from localcluster.apiserver.store import ChangeType, Event, Stored, event_line
from localcluster.apiserver.versions import shown, shown_object
from localcluster.client.clock import utc_now
from localcluster.json_text import dumps
from localcluster.resource import JSON, ResourceType
from localcluster.tables import TableRenderer

IncludeObject = Literal["None", "Metadata", "Object"]
META_API = "meta.k8s.io/v1"
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Objects:
    """Whole objects. Their bytes are shared by all clients that see the same version of the kind."""

    def __init__(self, resource_type: ResourceType) -> None:
        self._type = resource_type

    def one(self, stored: Stored) -> bytes:
        return shown(self._type, stored).raw

    def list(self, items: Sequence[Stored], list_metadata: JSON) -> bytes:
        if self._type.custom:
            # Lists of other kinds, and tables, are Go types in Kubernetes, which leave out what is empty.
            list_metadata = {"continue": "", **list_metadata}
        head = {"kind": self._type.list_kind, "apiVersion": self._type.api_version, "metadata": list_metadata}
        listed = b",".join(self.one(item) for item in items)
        return b'%b,"items":[%b]}' % (dumps(head)[:-1], listed)

    def event(self, event: Event, as_type: ChangeType) -> bytes:
        if event.now.obj.get("apiVersion") == self._type.api_version:
            return event.line(as_type)
        obj = shown_object(self._type, event.sent_object(as_type))
        return event_line(as_type.value, dumps(obj))

    def existing(self, stored: Stored) -> bytes:
        return event_line(ChangeType.ADDED.value, self.one(stored))

    def bookmark(self, version: int, *, ends_initial_events: bool) -> bytes:
        obj = {
            "kind": self._type.kind,
            "apiVersion": self._type.api_version,
            "metadata": _bookmark_metadata(version, ends_initial_events=ends_initial_events),
        }
        return event_line("BOOKMARK", dumps(obj))

    def error(self, error: ApiError) -> bytes:
        return error_line(error)


class Metadata:
    """Only `metadata`."""

    def __init__(self, resource_type: ResourceType) -> None:
        self._type = resource_type

    def one(self, stored: Stored) -> bytes:
        return dumps(self._object(stored.obj))

    def _object(self, obj: JSON) -> JSON:
        return {"kind": "PartialObjectMetadata", "apiVersion": META_API, "metadata": obj["metadata"]}

    def list(self, items: Sequence[Stored], list_metadata: JSON) -> bytes:
        listed = [self._object(item.obj) for item in items]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": META_API, "metadata": list_metadata}
        return dumps({**head, "items": listed})

    def event(self, event: Event, as_type: ChangeType) -> bytes:
        return event_line(as_type.value, dumps(self._object(event.sent_object(as_type))))

    def existing(self, stored: Stored) -> bytes:
        return event_line(ChangeType.ADDED.value, self.one(stored))

    def bookmark(self, version: int, *, ends_initial_events: bool) -> bytes:
        obj = {"metadata": _bookmark_metadata(version, ends_initial_events=ends_initial_events)}
        return event_line("BOOKMARK", dumps(self._object(obj)))

    def error(self, error: ApiError) -> bytes:
        return error_line(error)


class Table:
    """Rows for kubectl. One for each request: a watch is told the columns only once."""

    def __init__(self, resource_type: ResourceType, include_object: IncludeObject) -> None:
        self._type = resource_type
        self._renderer = _renderer(resource_type)
        self._include_object = include_object
        self._columns_sent = False

    def one(self, stored: Stored) -> bytes:
        return self._table([stored.obj], _list_metadata(stored))

    def list(self, items: Sequence[Stored], list_metadata: JSON) -> bytes:
        return self._table([item.obj for item in items], list_metadata)

    def event(self, event: Event, as_type: ChangeType) -> bytes:
        return self._event(as_type.value, [event.sent_object(as_type)], event.version)

    def existing(self, stored: Stored) -> bytes:
        return self._event(ChangeType.ADDED.value, [stored.obj], stored.version)

    def bookmark(self, version: int, *, ends_initial_events: bool) -> bytes:
        metadata = _bookmark_metadata(version, ends_initial_events=ends_initial_events)
        obj = {"kind": self._type.kind, "apiVersion": self._type.api_version, "metadata": metadata}
        table = self._renderer.table([], utc_now(), list_metadata={"resourceVersion": str(version)})
        table["rows"] = [{"cells": [""] * len(self._renderer.columns), "object": obj}]
        return event_line("BOOKMARK", dumps(table))

    def error(self, error: ApiError) -> bytes:
        return error_line(error)

    def _event(self, event_type: str, objects: Sequence[JSON], version: int) -> bytes:
        with_columns = not self._columns_sent
        self._columns_sent = True
        table = self._render(objects, {"resourceVersion": str(version)}, with_columns=with_columns)
        return event_line(event_type, dumps(table))

    def _table(self, objects: Sequence[JSON], list_metadata: JSON) -> bytes:
        return dumps(self._render(objects, list_metadata, with_columns=True))

    def _render(self, objects: Sequence[JSON], list_metadata: JSON, *, with_columns: bool) -> JSON:
        return self._renderer.table(
            [shown_object(self._type, obj) for obj in objects],
            utc_now(),
            list_metadata=list_metadata,
            include_object=self._include_object,
            with_columns=with_columns,
        )


AnyEncoder = Objects | Metadata | Table


def encoder_for(context: Context, representation: Representation) -> AnyEncoder:
    """The form that a request asks for."""
    match representation:
        case Representation.OBJECTS:
            return Objects(context.type)
        case Representation.METADATA:
            return Metadata(context.type)
        case Representation.TABLE:
            include = context.query.get("includeObject") or "Metadata"
            if include not in ("None", "Metadata", "Object"):
                raise bad_request(f'includeObject must be "None", "Metadata" or "Object", not "{include}"')
            return Table(context.type, cast(IncludeObject, include))


def error_line(error: ApiError) -> bytes:
    return event_line("ERROR", dumps(error.status()))


def _bookmark_metadata(version: int, *, ends_initial_events: bool) -> JSON:
    metadata: JSON = {"resourceVersion": str(version), "creationTimestamp": None}
    if ends_initial_events:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return metadata


def _list_metadata(stored: Stored) -> JSON:
    return {"resourceVersion": str(stored.version)}


@lru_cache(maxsize=256)
def _renderer_of(resource_type: ResourceType, columns: str) -> TableRenderer:
    return TableRenderer(resource_type)


def _renderer(resource_type: ResourceType) -> TableRenderer:
    """Kept by the columns too, which equality of types leaves out."""
    return _renderer_of(resource_type, repr(resource_type.printer_columns))
