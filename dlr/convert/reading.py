"""Reads a manifest without silently dropping fields.

A field that is taken is removed. Each field that is left at the end gets a remark with path and reason.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

JSON = dict[str, Any]
D = TypeVar("D")

NO_SUCH_FIELD = "an ElasticJob has nothing like it"
OBJECTS = {
    *("template", "spec", "resources", "resourcesPerNode", "limits", "requests"),
    *("elasticPolicy", "nodeCheck", "failurePolicy", "runPolicy", "schedulingPolicy"),
}
LISTS = {"command", "args"}
LISTS_OF_OBJECTS = {"containers", "initContainers", "env", "volumes", "volumeMounts"}
TEXTS = {"name", "generateName", "action", "managedBy"}
FREE = {"labels", "annotations", "matchLabels", "nodeSelector"}
"""Fields with arbitrary keys."""


class NotConvertible(Exception):
    """A manifest cannot be converted to an ElasticJob; the message is a sentence."""


@dataclass(frozen=True)
class Remark:
    """A remark on a field of the manifest."""

    path: str
    why: str
    is_loss: bool = True
    """Whether the field could not be carried over; otherwise it is not needed."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def refuse_misshapen(body: Any, path: str = "") -> None:
    """Refuse a manifest with a value of the wrong type: not a list, an object or a text as in Kubernetes.

    Raises:
        NotConvertible: a field has the wrong type; the message names it.
    """
    if isinstance(body, list):
        for number, each in enumerate(body):
            refuse_misshapen(each, f"{path}[{number}]")
    if not isinstance(body, dict):
        return
    for key, value in body.items():
        at = f"{path}.{key}" if path else str(key)
        if value is None:
            continue
        if key in OBJECTS | FREE and not isinstance(value, dict):
            raise NotConvertible(f"{at} is no object.")
        if key in TEXTS and not isinstance(value, str):
            raise NotConvertible(f"{at} is no text.")
        if key in LISTS | LISTS_OF_OBJECTS and not isinstance(value, list):
            raise NotConvertible(f"{at} is no list.")
        if key in LISTS_OF_OBJECTS and not all(isinstance(each, dict) for each in value):
            raise NotConvertible(f"{at} is no list of objects.")
        if key not in FREE:
            refuse_misshapen(value, at)


@dataclass
class Reader:
    """A part of a manifest, from which fields are taken."""

    body: JSON
    path: str = ""
    remarks: list[Remark] = field(default_factory=list)
    """Remarks on the manifest, shared by all its readers."""

    @classmethod
    def of(cls, body: JSON) -> Reader:
        return cls(copy.deepcopy(body))

    def take(self, key: str, default: Any = None) -> Any:
        """Take a value, which counts as carried over."""
        value = self.body.pop(key, None)
        return default if value is None else value

    def number(self, key: str, default: D) -> int | D:
        """Take a whole number."""
        value = self.body.pop(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise NotConvertible(f"{self._at(key)} is {value!r}, which is no whole number.")
        return value

    def within(self, key: str) -> Reader:
        """Return a reader of an object, which is empty if the field is missing."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise NotConvertible(f"{self._at(key)} is no object.")
        return Reader(value, self._at(key), self.remarks)

    def each(self, key: str) -> list[Reader]:
        """Return a reader of each object of a list."""
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise NotConvertible(f"{self._at(key)} is no list of objects.")
        return [Reader(each, f"{self._at(key)}[{number}]", self.remarks) for number, each in enumerate(value)]

    def lose(self, key: str, why: str) -> None:
        """Remark that a field is not carried over, if the manifest has it."""
        if self.body.pop(key, None) not in (None, {}, []):
            self.remarks.append(Remark(self._at(key), why))

    def replace(self, key: str, why: str) -> None:
        """Remark that a field is not needed, if the manifest has it."""
        if self.body.pop(key, None) not in (None, {}, []):
            self.remarks.append(Remark(self._at(key), why, is_loss=False))

    def finish(self, reasons: Mapping[str, str] | None = None) -> None:
        """Remark on all fields that are left, with the reasons by key; the default is NO_SUCH_FIELD."""
        for key in list(self.body):
            self.lose(key, (reasons or {}).get(key, NO_SUCH_FIELD))

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
