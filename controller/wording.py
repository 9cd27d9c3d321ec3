"""Texts cut to the room that there is for them."""

from __future__ import annotations

import re


def shortened(text: str, limit: int) -> str:
    """At most so many characters; an ellipsis says that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 worker`, `2 workers`, `2 processes`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]: ?)+")
_PROGRESS_BAR = re.compile(r"\d%\||\|\s*\d+/\d+\s|\[\d+:\d+(?::\d+)?<")
"""As tqdm, rich and pip draw them."""


def last_line(text: str) -> str:
    """The last that is neither blank nor a progress bar, without the rank that torch puts before it; "" if
    there is none."""
    drawn = (line.rstrip("\r").rpartition("\r")[2].strip() for line in reversed(text.splitlines()))
    said = (_RANK_PREFIX.sub("", line) for line in drawn)
    return next((line for line in said if line and not _PROGRESS_BAR.search(line)), "")


def first_line(text: str | None) -> str:
    """The first that is not blank; "" if there is none."""
    lines = (text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
