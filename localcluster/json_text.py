"""JSON as the API server reads and writes it; what orjson does not take is refused in words."""

from __future__ import annotations

from typing import Any

import orjson

BODY_MAX_BYTES = 3 * 1024 * 1024


class JsonError(ValueError):
    """Text that is no JSON, or a value that JSON cannot say; the message says why."""


def loads(text: bytes) -> Any:
    """The value of a text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise JsonError(str(error)) from None


def dumps(value: Any) -> bytes:
    """The shortest text of a value, which must not be nested more than 254 levels deep."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise JsonError(_words(error)) from None


def copied(value: Any) -> Any:
    """A copy that shares nothing with the value."""
    return loads(dumps(value))


def from_yaml(value: Any) -> Any:
    """Return a YAML document as JSON."""
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except TypeError as error:
        raise JsonError(_words(error)) from None


def _words(error: TypeError) -> str:
    text = str(error)
    return "the object is nested too deeply for this cluster" if "ecursion" in text else text
