"""Data that is too large for a status, as lines of a container's log: an agent writes it, a command reads it.

Whoever may read a Pod's log can read it, on every cluster, and nothing of it is stored in the API server.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

MARK = "dlr-part "
"""Beginning of such a line; a progress bar may stand before it."""
CHUNK_BYTES = 2_700
"""Data of one line. With its name a line has less than 4,096 bytes, which a pipe takes as a whole."""


def log_parts(name: str, data: bytes) -> Iterator[str]:
    """Yield the lines of some data.

    Args:
        name: what the data answers, of 64 characters at most.
    """
    count = -(-len(data) // CHUNK_BYTES)
    for number in range(count):
        chunk = data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        yield f"{MARK}{name} {number + 1}/{count} {base64.b64encode(chunk).decode()}"


def is_log_part(line: str) -> bool:
    """Whether a line of a log is data, and nothing to read."""
    return MARK in line


def from_log(name: str, lines: Iterable[str]) -> bytes | None:
    """Return the data of that name; None if a part of it is missing."""
    found: dict[int, bytes] = {}
    count = 0
    for line in lines:
        _, mark, rest = line.partition(f"{MARK}{name} ")
        place, _, text = rest.partition(" ")
        number, _, total = place.partition("/")
        if mark and number.isdecimal() and total.isdecimal():
            try:  # any process of the Pod may write such a line, with thousands of digits too
                part, parts = int(number), int(total)
                found[part] = base64.b64decode(text)
            except ValueError:
                continue
            count = parts
    whole = count and all(number in found for number in range(1, count + 1))
    return b"".join(found[number] for number in range(1, count + 1)) if whole else None
