"""`meta.k8s.io/v1` Tables: the server, not kubectl, decides what columns a kind has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal

from localcluster.ages import age
from localcluster.json_text import dumps
from localcluster.jsonpath import JsonPathError, compile_path
from localcluster.printers import AGE, NAME, PRINTERS, Column, Printer, age_of, name_of
from localcluster.resource import JSON, ResourceType

API_VERSION = "meta.k8s.io/v1"
IncludeObject = Literal["None", "Metadata", "Object"]

_DEFAULT_PRINTER = Printer((NAME, AGE), lambda obj, now: [name_of(obj), age_of(obj, now)])


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
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": API_VERSION,
                "metadata": obj["metadata"],
            }
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
    if resource_type.printer_columns:
        return _custom_printer(resource_type.printer_columns)
    return PRINTERS.get(resource_type.group_resource, _DEFAULT_PRINTER)


def _custom_printer(definitions: tuple[JSON, ...]) -> Printer:
    columns = tuple(
        Column(
            name=definition["name"],
            type=definition["type"],
            format=definition.get("format", ""),
            description=definition.get("description", ""),
            priority=definition.get("priority", 0),
        )
        for definition in definitions
    )
    readers = tuple(_reader(definition) for definition in definitions)
    return Printer(
        (NAME, *columns), lambda obj, now: [name_of(obj), *(reader(obj, now) for reader in readers)]
    )


def _reader(definition: JSON) -> Callable[[JSON, datetime], Any]:
    """Return what makes a printer column's cell of an object; null if there is nothing to show."""
    try:
        find = compile_path(definition["jsonPath"])
    except JsonPathError:
        return lambda obj, now: None
    convert = _CONVERTERS.get(definition["type"], _text_cell)

    def read(obj: JSON, now: datetime) -> Any:
        found = find(obj)
        if not found or found[0] is None:
            return None
        return convert(found, now)

    return read


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return dumps(value).decode() if isinstance(value, (dict, list)) else str(value)


def _text_cell(found: list[Any], now: datetime) -> Any:
    return " ".join(_text(value) for value in found)


def _integer_cell(found: list[Any], now: datetime) -> Any:
    return int(found[0]) if _number(found[0]) else None


def _number_cell(found: list[Any], now: datetime) -> Any:
    return float(found[0]) if _number(found[0]) else None


def _boolean_cell(found: list[Any], now: datetime) -> Any:
    return found[0] if isinstance(found[0], bool) else None


def _date_cell(found: list[Any], now: datetime) -> Any:
    return age(found[0], now) if isinstance(found[0], str) else None


_CONVERTERS: dict[str, Callable[[list[Any], datetime], Any]] = {
    "integer": _integer_cell,
    "number": _number_cell,
    "boolean": _boolean_cell,
    "date": _date_cell,
}
