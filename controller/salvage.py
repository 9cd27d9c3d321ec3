"""Tolerant reading of objects: an unreadable object affects no other one.

Kubernetes stores 10,000 levels of nesting, but orjson reads only 1,024. So when orjson has refused a text,
values nested too deeply are cut out of it, by a linear scan in a thread. The rest of the text is read as
usual, and an object that was cut is unreadable.
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
"""Size from which Python's garbage collector would take longer than the parser."""
MAX_REASON = 200
MOST_LEVELS = 250
"""Levels that are kept of a text with too many: orjson writes four more."""
TOO_DEEP = "it is nested too deeply"

CUT = b'"dlr: nested too deeply"'
"""Replacement of each value that is cut out."""
_BRACKETS = re.compile(
    rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:([\[{]++)|([\]}]++)|\Z)', re.DOTALL
)
"""Matches the next opening or closing brackets. It matches at every position: no text is scanned twice."""
_NAMES = ("name", "namespace", "uid", "resourceVersion", "generation")
_PLAIN = re.compile(r"[!-~]{1,253}")


@dataclass(frozen=True)
class UnreadableObject:
    """Object of the API server that this process cannot read."""

    obj: Object
    """Its identity and conditions; empty if it has no identity."""
    reason: str
    """Reason, as part of a sentence."""

    @property
    def has_name(self) -> bool:
        return bool(self.obj)


def parsed(text: bytes) -> Any:
    """Parse JSON.

    Raises:
        orjson.JSONDecodeError: orjson cannot read it.
    """
    if len(text) < LARGE_BYTES:
        return orjson.loads(text)
    with without_collections():
        return orjson.loads(text)


async def parsed_shallow(text: bytes) -> Any:
    """Parse JSON without values nested too deeply (`is_cut`)."""
    return parsed(await asyncio.to_thread(shallow, text))


def is_cut(obj: Any) -> bool:
    return CUT in orjson.dumps(obj)


def strangeness(obj: Object) -> str | None:
    """Return why a parsed object is malformed by its metadata; None if it is not.

    The API server sends no such object of a kind with a schema, but a proxy in front of it may.
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
    """Return why an object that is read without a model is malformed; None if it is not."""
    if (found := strangeness(obj)) is not None:
        return found
    wrong = next((field for field in ("spec", "status") if not isinstance(obj.get(field, {}), dict)), None)
    return None if wrong is None else f"its {wrong} is no object"


def reason_of(error: Exception) -> str:
    """Return why an object cannot be read, from the error that reading it raised."""
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
    """Return the object's identity and conditions; empty if it has no identity."""
    if strangeness(obj) is not None:
        return {}
    metadata, status = obj["metadata"], obj.get("status")
    found: Object = {"metadata": {field: metadata[field] for field in _NAMES if metadata.get(field)}}
    conditions = status.get("conditions") if isinstance(status, dict) else None
    if isinstance(conditions, list) and all(isinstance(c, dict) and "type" in c for c in conditions):
        found["status"] = {"conditions": conditions}
    return found


def shallow(text: bytes) -> bytes:
    """Return the text with each value below `MOST_LEVELS` replaced by a mark."""
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
