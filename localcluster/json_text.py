"""JSON as Kubernetes' API server reads and writes it.

orjson does it for ordinary objects. It stops at 1,024 levels where Kubernetes takes 10,000, and refuses what
is no UTF-8 where Go reads U+FFFD; what it refuses goes through Python's own reader, for which
`allow_deep_objects` makes room. Whole numbers beyond 64 bits with sign become floating point, as in Go.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import orjson
import re2

MAX_DEPTH = 10_000
BODY_MAX_BYTES = 3 * 1024 * 1024
_STACK_BYTES = 120 * 1024 * 1024
"""The kernel keeps 128 MiB free below the stack of a process' first thread."""
_RECURSION_LIMIT = 100_000
_INT64 = range(-(2**63), 2**63)
_LONG_NUMBER = re2.compile(r"[0-9]{19}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACED = "localcluster-replace"


class JsonError(ValueError):
    """Text that is no JSON, or a value that JSON cannot say; the message says why."""


def allow_deep_objects() -> None:
    """Let this process' first thread recurse through the deepest objects: compare, patch and show them."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    sys.setrecursionlimit(_RECURSION_LIMIT)


def parse(text: bytes) -> Any:
    """The value of a text that a client sent."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _plain(_slow_loads(text))
    return _plain(value) if _LONG_NUMBER.search(text) else value


def loads(text: bytes) -> Any:
    """The value of a text of our own."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _slow_loads(text)


def dumps(value: Any, *, as_object: bool = False) -> bytes:
    """The shortest text of a value. `as_object`: it must not be deeper than what can be read again."""
    try:
        return orjson.dumps(value)
    except TypeError:
        if as_object:
            _check_depth(value)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def copied(value: Any) -> Any:
    """A copy that shares nothing with the value."""
    return loads(dumps(value))


def duplicate_fields(text: bytes) -> list[str]:
    """The paths of fields that an object in the text has more than once."""

    def read(pairs: list[tuple[str, Any]]) -> Any:
        fields = dict(pairs)
        return fields if len(fields) == len(pairs) else _Repeated(pairs)

    repeated: list[str] = []
    waiting = [("", json.loads(text.decode(errors="replace"), object_pairs_hook=read))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Repeated):
            seen: set[str] = set()
            for key, child in value.pairs:
                if key in seen and f"{path}{key}" not in repeated:
                    repeated.append(f"{path}{key}")
                seen.add(key)
                waiting.append((f"{path}{key}", child))
        else:
            waiting += [(f"{path}{step}", child) for step, child in _steps(value)]
    return sorted(each.removeprefix(".") for each in repeated)


class _Repeated:
    """An object in which a field comes more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = [(f".{key}", value) for key, value in pairs]


def _steps(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f".{key}", child) for key, child in value.items())
    elif isinstance(value, list):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))


def from_yaml(value: Any) -> Any:
    """What a YAML document says, as JSON; shares nothing, however often an anchor was named."""
    return copied(_plain(value))


# --- the slow way ---


def _replace_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd", error.start + 1


codecs.register_error(_REPLACED, _replace_byte)


def _slow_loads(text: bytes) -> Any:
    try:
        return json.loads(text.decode(errors=_REPLACED), parse_constant=_no_number, parse_int=_whole)
    except RecursionError:
        raise JsonError(f"exceeded max depth of {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise JsonError(str(error)) from None


def _no_number(text: str) -> NoReturn:
    raise JsonError(f"{text} is no number of JSON")


def _whole(text: str) -> int | float:
    return int(text) if len(text) <= len("-9223372036854775808") else float(text)


def _plain(root: Any) -> Any:
    """A value without what Kubernetes has no type for, changed in place."""
    holder = [root]
    waiting: list[tuple[Any, int]] = [(holder, 0)]
    room = 2 * BODY_MAX_BYTES  # more than any text of that size can say without naming a part twice
    while waiting:
        container, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise JsonError(f"exceeded max depth of {MAX_DEPTH}")
        if isinstance(container, dict) and not all(map(_is_key, container)):
            fields = {_key(key): child for key, child in container.items()}
            container.clear()
            container.update(fields)
        for key, child in list(container.items() if isinstance(container, dict) else enumerate(container)):
            room -= (
                1 + (len(child) if isinstance(child, str) else 0) + (len(key) if isinstance(key, str) else 0)
            )
            if isinstance(child, (dict, list)):
                waiting.append((child, depth + 1))
            elif child is not None and type(child) is not bool:
                container[key] = _scalar(child)
        if room < 0:
            raise JsonError("the document names its parts too often")
    return holder[0]


def _is_key(key: Any) -> bool:
    return type(key) is str and _is_unicode(key)


def _is_unicode(text: str) -> bool:
    return text.isascii() or _SURROGATE.search(text) is None


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    return _text(str(key))


def _text(text: str) -> str:
    return text if _is_unicode(text) else _SURROGATE.sub("\ufffd", text)


def _scalar(value: Any) -> Any:
    if type(value) is str:
        return _text(value)
    if type(value) is int and value not in _INT64:
        value = float(value) if abs(value) < 10**308 else math.inf
    if type(value) is float and not math.isfinite(value):
        raise JsonError("a number is out of range")
    if type(value) not in (int, float):
        raise JsonError(f"a {type(value).__name__} is nothing that JSON can say")
    return value


def _check_depth(root: Any) -> None:
    waiting = [(root, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise JsonError(f"exceeded max depth of {MAX_DEPTH}")
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(child, depth + 1) for child in children if isinstance(child, (dict, list))]
