"""Texts cut to the room that there is for them."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(text: str, limit: int) -> str:
    """At most so many characters; an ellipsis says that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 worker`, `2 workers`, `2 processes`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def some_of(items: Sequence[str], most: int, separator: str = ", ") -> str:
    """At most so many items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{separator.join(items[:most])}{more}"


def and_more(number: int, one: str) -> str:
    """`; and 2 more workers`; empty for none."""
    return f"; and {counted(number, f'more {one}')}" if number else ""


def holders(finalizers: Sequence[str] | None) -> list[str]:
    """The finalizers that hold a deleted object until somebody takes them away. Garbage collection's own go
    by themselves."""
    return [each for each in finalizers or () if each not in ("orphan", "foregroundDeletion")]


def held_by(finalizers: Sequence[str] | None) -> str:
    """What holds a deleted object, in a few words; empty where no finalizer of others does."""
    others = holders(finalizers)
    return f"held by its finalizers {some_of(others, 3)}" if others else ""


def printable(text: str) -> str:
    """The text with a blank in place of each control character, which a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)


def first_line(text: str | None) -> str:
    """The first that is not blank; "" if there is none."""
    lines = (text or "").strip().splitlines()
    return lines[0].strip() if lines else ""
