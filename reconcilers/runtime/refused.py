"""What the API server refuses for what it is, rather than for when it came, and when to ask again. Pure."""

from __future__ import annotations

from controller.errors import (
    NO_WEBHOOK,
    ApiError,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    is_denial,
)

RETRY_SECONDS = 30.0
TRIES_PER_SECOND = 50
"""Of so many objects that each would otherwise be tried too often."""


def is_refusal(error: ApiError) -> bool:
    """Whether it is to be told and tried again later: the object is invalid, a quota, a right, a policy or a
    webhook forbids it, or a webhook that is to allow it is away. All else is a race, an outage, or nothing
    that anybody foresaw."""
    if isinstance(error, NamespaceTerminating):
        return False
    return isinstance(error, Invalid | Forbidden) or is_denial(error) or NO_WEBHOOK in str(error)


def retry_seconds(objects: int = 1, at_least: float | None = None) -> float:
    """Returns the time after which each of so many objects that could not be made is tried again.

    Args:
        at_least: for few of them; None for `RETRY_SECONDS`.
    """
    return max(RETRY_SECONDS if at_least is None else at_least, objects / TRIES_PER_SECOND)


def not_served(error: NotFound) -> bool:
    """Whether the kind is unknown to the server, rather than the object: then it names none."""
    return not error.details.get("name")
