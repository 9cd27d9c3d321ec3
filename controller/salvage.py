"""Reading what others wrote, one object at a time: an object that cannot be read costs nobody but itself.

Kubernetes stores JSON that orjson refuses (10,000 levels of nesting; orjson stops at 1,024). Of such an
object metadata and conditions are read all the same, enough to report on it: a scan in pure Python, linear in
the text, cuts all else off. It runs in a thread, and only after orjson has refused the whole.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from controller.garbage import without_collections
from controller.resources import Object

T = TypeVar("T")

LARGE_BYTES = 2**16
"""Text from which on Python's garbage collector would take longer than the parser."""
MAX_REASON = 200

_RUN = rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+'
"""What stands between two brackets: no loop of Python's for it, and no way back for the matcher."""
_BRACKET = re.compile(_RUN + rb"([\[\]{}]|\Z)", re.DOTALL)
"""The next bracket, or the end: it matches wherever it is tried, so no text is looked at twice."""
_BRACKETS = re.compile(_RUN + rb"(?:([\[{]++)|([\]}]++)|\Z)", re.DOTALL)
_LAST_KEY = re.compile(rb'"([^"\\]{1,64})"[ \t\r\n]*:[ \t\r\n]*\Z')
_METADATA, _STATUS = {b"metadata": 1}, {b"metadata": 1, b"status": 3}
"""How deep each field of an object is looked into; status.conditions[] is the third level of status."""
_NAMES = ("name", "namespace", "uid", "resourceVersion", "generation")
_OPENERS = (b"[", b"{")
_PLAIN = re.compile(r"[!-~]{1,253}")


@dataclass(frozen=True)
class Unreadable:
    """An object that the API server has and this process does not read."""

    obj: Object
    """What names it: a part of its metadata. Empty if nothing does."""
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


async def in_thread(scan: Callable[[bytes], T], text: bytes) -> T:
    """What a scan makes of a text; the interpreter lets others have their turn beside a thread."""
    return await asyncio.to_thread(scan, text)


async def read(text: bytes) -> Object | Unreadable:
    """The parsed object, or what can be made out of it."""
    try:
        found = parsed(text)
    except orjson.JSONDecodeError as error:
        return Unreadable(await in_thread(metadata_of, text), reason_of(error))
    return found if isinstance(found, dict) else Unreadable({}, "it is no object")


def event_of(line: bytes) -> tuple[str, Object] | None:
    """Type of a watch's line that orjson refuses, and its object's metadata; None if it is no event at all.

    The API server writes type and metadata before all that may be long; what comes after is not looked at.
    """
    for ends_early in (True, False):
        event = _lenient(_outline(line, 1, _METADATA, ends_early))
        if isinstance(event, dict) and isinstance(event.get("object"), dict) and "type" in event:
            return str(event["type"]), named(event["object"])
    return None


def items_of(page: bytes) -> tuple[Object, list[bytes]] | None:
    """Metadata of a list that orjson refuses, and the text of each of its items; None if it is no list."""
    spans = list(_item_spans(page))
    start, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
    outline = _lenient(_outline(page[:start] + page[end:], 0, _METADATA))
    if not isinstance(outline, dict) or not isinstance(outline.get("metadata"), dict):
        return None
    return outline["metadata"], [page[first:last] for first, last in spans]


def metadata_of(text: bytes) -> Object:
    """What can be made out of the text of an object; empty if nobody could be shown it."""
    outlines = (_found(_lenient(_outline(text, 0, _METADATA, early))) for early in (True, False))
    return next((named(found) for found in outlines if found), {})


def conditions_of(text: bytes) -> Object:
    """The same with its status as deep as its conditions."""
    return _found(_lenient(_outline(text, 0, _STATUS)))


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
        return "it is nested too deeply"
    if isinstance(error, orjson.JSONDecodeError):
        return f"its JSON cannot be parsed ({text})"
    return f"a field is not what it should be ({type(error).__name__}: {text})"


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _is_reference(owner: object) -> bool:
    return isinstance(owner, dict) and all(
        isinstance(owner.get(field), str) for field in ("apiVersion", "kind", "name", "uid")
    )


def named(obj: Object) -> Object:
    """What names the object to others; empty if nothing does."""
    if strangeness(obj) is not None:
        return {}
    metadata = obj["metadata"]
    return {"metadata": {field: metadata[field] for field in _NAMES if metadata.get(field)}}


def _found(outline: Any) -> Object:
    return outline if isinstance(outline, dict) and strangeness(outline) is None else {}


def _outline(text: bytes, level: int, kept: Mapping[bytes, int], ends_early: bool = False) -> bytes:
    """The text with null for whatever is nested in an object, but for the fields that are kept.

    Args:
        level: of nesting at which the object stands: 0 if the text is the object.
        kept: how many levels of which fields.
        ends_early: after the object's metadata; what is open by then is closed.
    """
    pieces: list[bytes] = []
    depth, most, start, at, key = 0, level + 1, 0, 0, b""
    while True:
        match = _BRACKET.match(text, at)
        assert match is not None
        before, at, bracket = at, match.end(), match[1]
        if bracket in _OPENERS:
            if depth == level + 1:
                key = _key_before(text, before, at - 1)
                most = level + 1 + kept.get(key, 0)
            if depth >= most:
                pieces.append(text[start : at - 1] + b"null")
                start = at = _end_of(text, at - 1)
                continue
            depth += 1
        elif bracket:
            depth -= 1
            if depth == level + 1:
                most = level + 1
                if ends_early and key == b"metadata":
                    return b"".join([*pieces, text[start:at], b"}" * depth])
        else:
            return b"".join([*pieces, text[start:]])


def _item_spans(page: bytes) -> Iterator[tuple[int, int]]:
    """The places at which each item of a list begins and ends."""
    depth, at, in_items = 0, 0, False
    while bracket := (match := _BRACKET.match(page, at))[1]:  # type: ignore[index]
        before, at = at, match.end()  # type: ignore[union-attr]
        if bracket not in _OPENERS:
            depth -= 1
            continue
        if depth == 1:
            in_items = bracket == b"[" and _key_before(page, before, at - 1) == b"items"
        if depth < 1 or (depth == 1 and in_items):
            depth += 1
            continue
        begin, at = at - 1, _end_of(page, at - 1)
        if in_items:
            yield begin, at


def _key_before(text: bytes, start: int, end: int) -> bytes:
    found = _LAST_KEY.search(text, max(start, end - 80), end)
    return found[1] if found is not None else b""


def _end_of(text: bytes, at: int) -> int:
    """The place at which the value ends that begins with the bracket at this place."""
    depth = 0
    for match in _BRACKETS.finditer(text, at):
        opening, closing = match.span(1), match.span(2)
        depth += opening[1] - opening[0] - closing[1] + closing[0]
        if depth <= 0:
            return match.end() + depth
    return len(text)


def _lenient(text: bytes) -> Any:
    """JSON of few levels, with the numbers, characters and bytes that orjson refuses; None if it is none."""
    try:
        return json.loads(
            text.decode("utf-8", "replace"), strict=False, parse_int=_number, parse_constant=lambda _: None
        )
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)
