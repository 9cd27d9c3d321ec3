"""Helpers for short texts in messages."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(text: str, limit: int) -> str:
    """Return at most `limit` characters, with an ellipsis if there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a count such as `1 worker`, `2 workers` or `2 processes`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def some_of(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return at most `most` items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{separator.join(items[:most])}{more}"


def and_more(number: int, one: str) -> str:
    """Return `; and 2 more workers`; empty for 0."""
    return f"; and {counted(number, f'more {one}')}" if number else ""


def holders(finalizers: Sequence[str] | None) -> list[str]:
    """Return the finalizers that keep a deleted object until somebody removes them, without garbage
    collection's own."""
    return [each for each in finalizers or () if each not in ("orphan", "foregroundDeletion")]


def held_by(finalizers: Sequence[str] | None) -> str:
    """Return what keeps a deleted object, in a few words; empty if no such finalizer does."""
    others = holders(finalizers)
    return f"held by its finalizers {some_of(others, 3)}" if others else ""


def printable(text: str) -> str:
    """Return the text with a blank for each control character, which a terminal would execute."""
    return "".join(character if character.isprintable() else " " for character in text)


def first_line(text: str | None) -> str:
    """Return the first line that is not blank; "" if there is none."""
    lines = (text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
