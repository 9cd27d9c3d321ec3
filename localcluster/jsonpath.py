"""The simple JSONPaths of CRD printer columns: fields, indexes, `[*]` and equality filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_TOKEN = re.compile(
    r"""
    \.(?P<field>(?:[^.\[\]\\\s]|\\.)+)
  | \[\s*(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\s*\]
  | \[\s*(?P<index>-?\d+)\s*\]
  | (?P<all>\[\s*\*\s*\]|\.\*)
  | \[\?\(\s*@\.(?P<key>[\w.\-/]+)\s*==\s*(?P<value>'[^']*'|"[^"]*"|[^)\s]+)\s*\)\]
    """,
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """A path outside of what is supported."""


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(position: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= position < len(value):
            yield value[position]

    return step


def _every(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _filter(path: tuple[str, ...], wanted: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        for item in value if isinstance(value, list) else ():
            found = item
            for part in path:
                found = found.get(part) if isinstance(found, dict) else None
            if found is not None and _text(found) == wanted:
                yield item

    return step


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """`.status.conditions[?(@.type=="Ready")].status` as a function from an object to what is found there."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if not text.startswith((".", "[")):
        raise JsonPathError(f"JSONPath {path!r} must start with a dot")
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise JsonPathError(f"JSONPath {path!r} cannot be read at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()

    def find(obj: Any) -> list[Any]:
        values = [obj]
        for step in steps:
            values = [result for value in values for result in step(value)]
        return values

    return find


def _step(found: re.Match[str]) -> Step:
    if found["field"] is not None and found["field"] != "*":
        return _field(re.sub(r"\\(.)", r"\1", found["field"]))
    if found["quoted"] is not None:
        return _field(found["quoted"])
    if found["index"] is not None:
        return _index(int(found["index"]))
    if found["key"] is not None:
        return _filter(tuple(found["key"].split(".")), found["value"].strip("'\""))
    return _every


def field_names(path: str) -> tuple[str, ...]:
    """The names of a path that consists of fields only: `.spec.a['b.c']`."""
    names: list[str] = []
    position = 0
    while position < len(path):
        found = _TOKEN.match(path, position)
        name = found and (found["field"] or found["quoted"])
        if found is None or name is None:
            raise JsonPathError(f"JSONPath {path!r} must consist of field names only")
        names.append(re.sub(r"\\(.)", r"\1", name))
        position = found.end()
    return tuple(names)
