"""`meta.k8s.io/v1` Tables: the server, not kubectl, decides what columns a kind has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal

from localcluster.json_text import dumps
from localcluster.printers import AGE, NAME, PRINTERS, Column, Printer, age, age_of, at, name_of
from localcluster.resource import JSON, ResourceType

API_VERSION = "meta.k8s.io/v1"
IncludeObject = Literal["None", "Metadata", "Object"]

_DEFAULT_PRINTER = Printer((NAME, AGE), lambda obj, now: [name_of(obj), age_of(obj, now)])
_PATH = re.compile(
    r"""(?P<list>\.[\w.]+)\[\?\(@\.(?P<key>\w+)\s*==\s*["'](?P<value>[^"']*)["']\)\](?P<rest>\.[\w.]+)
    | (?P<fields>\.[\w.]+)""",
    re.VERBOSE,
)


class TableRenderer:
    """Renders the Tables of one kind; keep one for each ResourceType."""

    def __init__(self, resource_type: ResourceType) -> None:
        self._printer = _printer_of(resource_type)
        self.columns: list[JSON] = [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description or column.name,
                "priority": column.priority,
            }
            for column in self._printer.columns
        ]

    def row(self, obj: JSON, now: datetime, include_object: IncludeObject = "Metadata") -> JSON:
        """One object's row."""
        row: JSON = {"cells": self._printer.cells(obj, now)}
        if include_object == "Object":
            row["object"] = obj
        elif include_object == "Metadata":
            kind = {"kind": "PartialObjectMetadata", "apiVersion": API_VERSION}
            row["object"] = kind | {"metadata": obj["metadata"]}
        return row

    def table(
        self,
        objects: Iterable[JSON],
        now: datetime,
        *,
        list_metadata: JSON | None = None,
        include_object: IncludeObject = "Metadata",
        with_columns: bool = True,
    ) -> JSON:
        """A Table; within one watch only the first needs its columns."""
        return {
            "kind": "Table",
            "apiVersion": API_VERSION,
            "metadata": list_metadata or {},
            "columnDefinitions": self.columns if with_columns else [],
            "rows": [self.row(obj, now, include_object) for obj in objects],
        }


def _printer_of(resource_type: ResourceType) -> Printer:
    definitions = resource_type.printer_columns
    if not definitions:
        return PRINTERS.get(resource_type.group_resource, _DEFAULT_PRINTER)
    fields = ("name", "type", "format", "description", "priority")
    columns = (Column(**{name: each[name] for name in fields if name in each}) for each in definitions)
    readers = [_reader(definition) for definition in definitions]
    return Printer(
        (NAME, *columns), lambda obj, now: [name_of(obj), *(reader(obj, now) for reader in readers)]
    )


def _reader(definition: JSON) -> Callable[[JSON, datetime], Any]:
    """Return what makes a printer column's cell of an object; null if there is nothing to show."""
    found = _PATH.fullmatch(definition["jsonPath"])
    if found is None:  # Kubernetes' JSONPath has more than fields and a list's element by one of its fields
        return lambda obj, now: None

    def read(obj: JSON, now: datetime) -> Any:
        value = obj
        fields = found["fields"]
        if fields is None:
            listed = at(obj, *found["list"][1:].split(".")) or ()
            value = next((each for each in listed if each.get(found["key"]) == found["value"]), {})
            fields = found["rest"]
        return _cell(at(value, *fields[1:].split(".")), definition["type"], now)

    return read


def _cell(value: Any, kind: str, now: datetime) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case "integer" | "number":
            return value if is_number else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return age(value, now) if isinstance(value, str) else None
    return value if value is None or isinstance(value, str) else dumps(value).decode()
