"""Reading what others wrote, one object at a time: an object that cannot be read costs nobody but itself.

Kubernetes stores 10,000 levels of nesting, and orjson stops at 1,024. So once orjson has refused a text,
what is nested too deeply is cut out of it, by a scan in a thread that is linear in the text. All else of it
is read as ever, and an object that was cut is unreadable.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import orjson

from controller.garbage import without_collections
from controller.resources import Object

LARGE_BYTES = 2**16
"""Text from which on Python's garbage collector would take longer than the parser."""
MAX_REASON = 200
MOST_LEVELS = 250
"""Levels of a text that are kept where it has too many: orjson writes four more."""
TOO_DEEP = "it is nested too deeply"

CUT = b'"dlr: nested too deeply"'
"""What stands in place of each value that is cut out."""
_BRACKETS = re.compile(
    rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:([\[{]++)|([\]}]++)|\Z)', re.DOTALL
)
"""The next brackets that open, or that close. It matches wherever it is tried: no text is looked at twice."""
_NAMES = ("name", "namespace", "uid", "resourceVersion", "generation")
_PLAIN = re.compile(r"[!-~]{1,253}")


@dataclass(frozen=True)
class UnreadableObject:
    """An object that the API server has and this process does not read."""

    obj: Object
    """What names it, and its conditions. Empty if nothing names it."""
    reason: str
    """Why it cannot be read, as part of a sentence."""

    @property
    def has_name(self) -> bool:
        return bool(self.obj)


def parsed(text: bytes) -> Any:
    """The parsed JSON.

    Raises:
        orjson.JSONDecodeError: orjson does not read it.
    """
    if len(text) < LARGE_BYTES:
        return orjson.loads(text)
    with without_collections():
        return orjson.loads(text)


async def parsed_shallow(text: bytes) -> Any:
    """The same without what is nested too deeply (`is_cut`)."""
    return parsed(await asyncio.to_thread(shallow, text))


def is_cut(obj: Any) -> bool:
    return CUT in orjson.dumps(obj)


def strangeness(obj: Object) -> str | None:
    """Why nobody can handle a parsed object, whose metadata is not what Kubernetes' is; None if it is.

    The API server sends no such object of a kind that it knows; what stands before it may.
    """
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or not _is_plain(metadata.get("name")):
        return "its metadata has no name"
    for field in ("namespace", "uid", "resourceVersion"):
        if (value := metadata.get(field)) is not None and value != "" and not _is_plain(value):
            return f"its metadata.{field} is no plain text"
    for field in ("labels", "annotations"):
        found = metadata.get(field) or {}
        if not isinstance(found, dict) or not {*map(type, found.values())} <= {str}:
            return f"its metadata.{field} are no texts"
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(map(_is_reference, owners)):
        return "its metadata.ownerReferences are no references"
    return None


def strange_parts(obj: Object) -> str | None:
    """The same of all that is read of an object without its model."""
    if (found := strangeness(obj)) is not None:
        return found
    wrong = next((field for field in ("spec", "status") if not isinstance(obj.get(field, {}), dict)), None)
    return None if wrong is None else f"its {wrong} is no object"


def reason_of(error: Exception) -> str:
    """Why an object cannot be read, from what its reading raised."""
    text = " ".join(str(error).split()).encode("ascii", "replace").decode()[:MAX_REASON]
    if "recursion" in text.lower() or "depth limit" in text:
        return TOO_DEEP
    return f"a field is not what it should be ({type(error).__name__}: {text})"


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _is_reference(owner: object) -> bool:
    return isinstance(owner, dict) and all(
        isinstance(owner.get(field), str) for field in ("apiVersion", "kind", "name", "uid")
    )


def named(obj: Object) -> Object:
    """What names the object to others, and its conditions; empty if nothing names it."""
    if strangeness(obj) is not None:
        return {}
    metadata, status = obj["metadata"], obj.get("status")
    found: Object = {"metadata": {field: metadata[field] for field in _NAMES if metadata.get(field)}}
    conditions = status.get("conditions") if isinstance(status, dict) else None
    if isinstance(conditions, list) and all(isinstance(c, dict) and "type" in c for c in conditions):
        found["status"] = {"conditions": conditions}
    return found


def shallow(text: bytes) -> bytes:
    """The text with a mark in place of each value below `MOST_LEVELS`."""
    pieces, depth, start = list[bytes](), 0, 0
    for match in _BRACKETS.finditer(text):
        opening, closing = match.span(1), match.span(2)
        after = depth + opening[1] - opening[0] - closing[1] + closing[0]
        if depth <= MOST_LEVELS < after:
            pieces += (text[start : opening[0] + MOST_LEVELS - depth], CUT)
        elif after <= MOST_LEVELS < depth:
            start = closing[0] + depth - MOST_LEVELS
        depth = after
    return b"".join([*pieces, text[start:]] if depth <= MOST_LEVELS else pieces)
