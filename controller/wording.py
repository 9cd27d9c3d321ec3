"""Texts cut to the room that there is for them."""

from __future__ import annotations


def shortened(text: str, limit: int) -> str:
    """At most so many characters; an ellipsis says that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_line(text: str | None) -> str:
    """The first that is not blank; "" if there is none."""
    lines = (text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
