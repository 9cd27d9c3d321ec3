"""How many bytes a text takes in an object that Kubernetes keeps, and texts cut to the room that there is.

The API server writes JSON as Go does: `<`, `>`, `&` and most control characters take six bytes each.
https://pkg.go.dev/encoding/json#Marshal

Standard library only: the agent measures its reports with it.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LONGER_IN_GO = re.compile(r"\\.|[<>&\u2028\u2029]")
_MORE_BYTES = {r"\b": 4, r"\f": 4, "<": 5, ">": 5, "&": 5, "\u2028": 3, "\u2029": 3}
"""Bytes that Go takes beyond Python's; the other escapes are alike."""
_MOST_BYTES = 6
"""Bytes of one character."""


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys, what ends a line elsewhere, or what turns the text behind it around; newline and
tabulator stay."""
_TERMINAL_COMMAND = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*\x07?)")
"""Such as a colour, or the title of a window (ECMA-48)."""


def plain(text: str) -> str:
    """Return a text from outside without terminal commands, and a blank for each other control character."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(" ", _TERMINAL_COMMAND.sub("", text.replace("\r\n", "\n")))


def all_plain(value: Any) -> Any:
    """Return a JSON value with all of its texts, and names, as `plain` has them."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(name): all_plain(each) for name, each in value.items()}
    return [all_plain(each) for each in value] if isinstance(value, list) else value


def json_bytes(value: Any) -> int:
    """Return the size of a value's JSON as Go writes it."""
    text = _ENCODER.encode(value)
    more = sum(_MORE_BYTES.get(found, 0) for found in _LONGER_IN_GO.findall(text))
    return len(text.encode(errors="surrogatepass")) + more


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and an ellipsis: at most so many bytes of JSON.

    The ellipsis counts as one, so that of plain ASCII as many characters are kept.
    """
    if _count_fitting(text, limit) == len(text):
        return text
    return text[: _count_fitting(text, limit - 1)] + "…"


def ending(text: str, limit: int) -> str:
    """Return the end of the text, at most so many bytes of JSON."""
    last = text[-limit:]
    return last[len(last) - _count_fitting(last[::-1], limit) :]


def _count_fitting(text: str, limit: int) -> int:
    """Return how many of the first characters take at most so many bytes."""
    if _MOST_BYTES * len(text) <= limit:
        return len(text)
    first = text[:limit]
    if _size_bytes(first) <= limit:
        return len(first)
    return bisect_right(range(len(first) + 1), limit, key=lambda count: _size_bytes(first[:count])) - 1


def _size_bytes(text: str) -> int:
    return json_bytes(text) - len('""')
