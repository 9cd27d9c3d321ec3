"""Faults of fields in the wording of Kubernetes, which clients and people expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from localcluster.resource import JSON


class Reason(Enum):
    """Why a value is refused: its name in a Status' causes, and what messages begin with."""

    INVALID = ("FieldValueInvalid", "Invalid value")
    TYPE_INVALID = ("FieldValueTypeInvalid", "Invalid value")
    REQUIRED = ("FieldValueRequired", "Required value")
    NOT_SUPPORTED = ("FieldValueNotSupported", "Unsupported value")
    DUPLICATE = ("FieldValueDuplicate", "Duplicate value")
    FORBIDDEN = ("FieldValueForbidden", "Forbidden")
    TOO_LONG = ("FieldValueTooLong", "Too long")
    TOO_MANY = ("FieldValueTooMany", "Too many")
    INTERNAL = ("InternalError", "Internal error")

    @property
    def cause(self) -> str:
        return self.value[0]

    @property
    def words(self) -> str:
        return self.value[1]


_WITHOUT_VALUE = (Reason.REQUIRED, Reason.FORBIDDEN, Reason.TOO_LONG, Reason.INTERNAL)
OMITTED: Any = object()
"""In place of a value that is not shown."""


@dataclass(frozen=True)
class FieldError:
    """One fault of one field."""

    field: str
    """Its path; empty for the object itself, which Kubernetes shows as `<nil>`."""
    reason: Reason
    value: Any = ""
    detail: str = ""

    @property
    def message(self) -> str:
        text = self.reason.words
        if self.reason not in _WITHOUT_VALUE and self.value is not OMITTED:
            text += f": {_shown(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field or '<nil>'}: {self.message}"

    def cause(self) -> JSON:
        """Return it as an entry of a Status' `details.causes`."""
        return {"reason": self.reason.cause, "message": self.message, "field": self.field or "<nil>"}


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class MapKey:
    """The part of a path that is the key of a map."""

    key: str


Segment = str | int | MapKey


@dataclass
class Finding:
    """A fault found deep in an object; each level on the way up adds its part of the path."""

    reason: Reason
    value: Any = ""
    detail: str = ""
    """`{path}` stands for the field's path."""
    brackets: bool = False
    """Kubernetes writes a map's key as `[key]` in paths of CEL rules and list types, else as `.key`."""
    path: list[Segment] = field(default_factory=list)
    """The path from the field up to the root."""

    def at(self, segment: Segment) -> Finding:
        """The same fault as seen from the level above."""
        self.path.append(segment)
        return self

    def error(self) -> FieldError:
        path = render_path(tuple(reversed(self.path)), brackets=self.brackets)
        return FieldError(path, self.reason, self.value, self.detail.replace("{path}", path))


def render_path(segments: Sequence[Segment], *, brackets: bool = True) -> str:
    """`spec.replicaSpecs[worker].replicas`, from the root down."""
    text = ""
    for segment in segments:
        match segment:
            case int():
                text += f"[{segment}]"
            case MapKey(key) if brackets:
                text += f"[{key}]"
            case MapKey(key) | key:
                text += f".{key}"
    return text.removeprefix(".")
