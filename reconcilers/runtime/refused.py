"""What the API server refuses for what it is, rather than for when it came, and when to ask again. Pure."""

from __future__ import annotations

from controller.errors import Forbidden, Invalid, NamespaceTerminating, NotFound, Refused, is_denial

RETRY_SECONDS = 30.0
TRIES_PER_SECOND = 50
"""Of so many objects that each would otherwise be tried too often."""


def is_refusal(error: Refused) -> bool:
    """Whether it is to be told and tried again later: the object is invalid, or a quota, a right, a policy or
    a webhook forbids it. All else is a race, or nothing that anybody foresaw."""
    if isinstance(error, NamespaceTerminating):
        return False
    return isinstance(error, Invalid | Forbidden) or is_denial(error)


def retry_seconds(objects: int = 1, at_least: float | None = None) -> float:
    """Returns the time after which each of so many objects that could not be made is tried again.

    Args:
        at_least: for few of them; None for `RETRY_SECONDS`.
    """
    return max(RETRY_SECONDS if at_least is None else at_least, objects / TRIES_PER_SECOND)


def not_served(error: NotFound) -> bool:
    """Whether the kind is unknown to the server, rather than the object: then it names none."""
    return not error.details.get("name")
