"""Size of texts in JSON as Kubernetes stores it, and texts cut to such a size.

The API server encodes JSON as Go does: `<`, `>`, `&` and most control characters take six bytes each.
https://pkg.go.dev/encoding/json#Marshal

Standard library only: the agent measures its reports with this module.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LONGER_IN_GO = re.compile(r"\\.|[<>&\u2028\u2029]")
_MORE_BYTES = {r"\b": 4, r"\f": 4, "<": 5, ">": 5, "&": 5, "\u2028": 3, "\u2029": 3}
"""Bytes that Go uses beyond Python; the other escapes are the same."""
_MOST_BYTES = 6
"""Maximum bytes of one character."""


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal, end a line elsewhere, or reverse the text after them; newline and tab
are allowed."""
_TERMINAL_COMMAND = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*\x07?)")
"""Terminal commands such as a colour or a window title (ECMA-48)."""


def plain(text: str) -> str:
    """Return an untrusted text without terminal commands, and with a blank for any other control
    character."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(" ", _TERMINAL_COMMAND.sub("", text.replace("\r\n", "\n")))


def all_plain(value: Any) -> Any:
    """Return a JSON value with `plain` applied to all of its texts and names."""
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
    """Return the text, or its beginning with an ellipsis, in at most `limit` bytes of JSON.

    The ellipsis counts as one byte, so that `limit` characters of plain ASCII remain.
    """
    if _count_fitting(text, limit) == len(text):
        return text
    return text[: _count_fitting(text, limit - 1)] + "…"


def ending(text: str, limit: int) -> str:
    """Return the end of the text, in at most `limit` bytes of JSON."""
    last = text[-limit:]
    return last[len(last) - _count_fitting(last[::-1], limit) :]


def _count_fitting(text: str, limit: int) -> int:
    """Return how many leading characters fit into `limit` bytes."""
    if _MOST_BYTES * len(text) <= limit:
        return len(text)
    first = text[:limit]
    if _size_bytes(first) <= limit:
        return len(first)
    return bisect_right(range(len(first) + 1), limit, key=lambda count: _size_bytes(first[:count])) - 1


def _size_bytes(text: str) -> int:
    return json_bytes(text) - len('""')
