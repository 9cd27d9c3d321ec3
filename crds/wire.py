"""Dataclasses that agents write and the controller reads: JSON with names in camelCase, and limits.

The agent runs in training images, on any Python ≥ 3.10, without pydantic, so this module imports only the
standard library. The controller's pydantic reads the same classes: it takes the limits from `Limits`.
`crds.schema` takes the descriptions from the docstrings under the fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Schema = dict[str, Any]

MAX_INTEGER = 1 << 53
"""Greatest integer that every reader of JSON keeps exact."""
MAX_SECONDS = 10**9
"""Longest duration, about thirty years."""
MAX_NUMBER = 10**18
"""Greatest magnitude of any other number, so that a sum of a million stays finite."""
DIGITS = 9
"""Significant digits of a number that is not an integer."""

LOCAL = {"local": True}
"""Metadata of a dataclass field that is not on the wire."""


class WireWord(str, Enum):  # noqa: UP042 (the agent runs on Python 3.10 too)
    """StrEnum of Python 3.11: a member equals its value and is printed as it."""

    __str__ = str.__str__


def to_camel(name: str) -> str:
    """Return the name on the wire."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class OnWire:
    """Base of these dataclasses. Unknown fields are ignored: a newer CRD must not stop an older
    controller."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "alias_generator": to_camel,
        "populate_by_name": True,
        "extra": "ignore",
    }

    def to_wire(self) -> dict[str, Any]:
        """Return JSON-ready data within the limits. None stays, so that a merge patch removes the field.

        Numbers come from training processes, which may write anything, and the API server refuses a whole
        report for one number out of bounds; then the worker would be invisible.
        """
        return {
            each.name: _written(getattr(self, each.attribute), each.kind)
            for each in _fields(cast(Any, type(self)))
        }


class Limits:
    """Limits of a field, as metadata of `Annotated`.

    Args:
        check: raises ValueError for a value that is refused for another reason.
        schema: further keywords of the CRD's schema.
    """

    def __init__(
        self,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        pattern: str | None = None,
        check: Callable[[Any], Any] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.at_least = at_least
        self.at_most = at_most
        self.max_length = max_length
        self._check = check
        self._schema = schema or {}
        bounds = {"ge": at_least, "le": at_most, "min_length": min_length, "max_length": max_length}
        self._bounds = {
            name: bound for name, bound in {**bounds, "pattern": pattern}.items() if bound is not None
        }

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        schema = handler(source) | self._bounds
        if self._check is None:
            return schema
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": self._check},
            "schema": schema,
        }

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        found: Schema = handler(schema)
        return found | self._schema

    def bounded(self, value: float) -> float:
        """Return the number, or the nearest bound if it is beyond; 0 for NaN."""
        low = -MAX_NUMBER if self.at_least is None else self.at_least
        high = MAX_NUMBER if self.at_most is None else self.at_most
        return max(low, min(0 if math.isnan(value) else value, high))


_NONE = Limits()


def from_wire(kind: type[T], data: Any) -> T:
    """Read what `OnWire.to_wire` has written.

    Raises:
        TypeError, ValueError: the data does not have this form.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"a {kind.__name__} is a JSON object")
    found = {}
    for each in _fields(cast(Any, kind)):
        value = data.get(each.name)
        if value is not None:
            found[each.attribute] = _read(each.kind, value)
        elif each.is_required:
            raise ValueError(f"{each.name} is missing")
    return kind(**found)


class _Field:
    def __init__(self, attribute: str, kind: Any, is_required: bool) -> None:
        self.attribute = attribute
        self.name = to_camel(attribute)
        self.kind = kind
        self.is_required = is_required


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(each.name, hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(cast(Any, kind))
        if not each.metadata.get("local")
    )


@cache
def _parts(kind: Any) -> tuple[Any, Limits]:
    """Return a field's type without `None`, and its limits."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is not Annotated:
        return kind, _NONE
    bare, *metadata = get_args(kind)
    inner, limits = _parts(bare)
    return inner, next((each for each in metadata if isinstance(each, Limits)), limits)


def _written(value: Any, kind: Any) -> Any:
    kind, limits = _parts(kind)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, OnWire):
        return value.to_wire()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value if limits.max_length is None else value[: limits.max_length]
    if isinstance(value, int):
        return limits.bounded(value)
    if isinstance(value, float):
        return float(f"{limits.bounded(value):.{DIGITS}g}")
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Mapping):
        name, inner = get_args(kind)
        of = _parts(name)[1].max_length
        return {key[:of]: _written(each, inner) for key, each in list(value.items())[: limits.max_length]}
    inner = get_args(kind)[0]
    return [_written(each, inner) for each in value[: limits.max_length]]


def _read(kind: Any, value: Any) -> Any:
    kind, _ = _parts(kind)
    origin = get_origin(kind)
    if is_dataclass(kind):
        return from_wire(cast(Any, kind), value)
    if kind is datetime:
        return parse_time(value)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], each) for each in value)
    if origin is dict or origin is Mapping:
        return {str(key): _read(get_args(kind)[1], each) for key, each in value.items()}
    return kind(value)


def rfc3339(time: datetime) -> str:
    """Return the time in UTC as Kubernetes writes it (metav1.MicroTime), with microseconds."""
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_in_this_age(time: datetime) -> bool:
    """Return whether an untrusted time is plausible; arithmetic near the years 1 and 9999 overflows."""
    return time.tzinfo is not None and 1970 <= time.year < 3000


def parse_time(text: str) -> datetime:
    """Read a time with its zone.

    Raises:
        TypeError, ValueError: the text is not a time.
    """
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)
