"""Refusals by the API server that do not depend on timing, and the time until the next attempt. Pure."""

from __future__ import annotations

from controller.errors import (
    ApiError,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    WebhookUnavailable,
    is_denial,
)

WRITE_REFUSED = "WriteRefused"
"""Reason of Events, of a warning and of a ScalePlan's condition."""
RETRY_SECONDS = 30.0
TRIES_PER_SECOND = 50
"""Most attempts per second, if very many objects are refused."""


def is_refusal(error: ApiError) -> bool:
    """Whether to report an error and try again later: the object is invalid, a quota, a right, a policy or a
    webhook forbids it, or a webhook does not answer. All other errors are races, outages, or unexpected."""
    if isinstance(error, NamespaceTerminating):
        return False
    return isinstance(error, Invalid | Forbidden | WebhookUnavailable) or is_denial(error)


def retry_seconds(objects: int = 1, at_least: float | None = None) -> float:
    """Return the time after which each of so many refused objects is tried again.

    Args:
        at_least: time for few objects; None for `RETRY_SECONDS`.
    """
    return max(RETRY_SECONDS if at_least is None else at_least, objects / TRIES_PER_SECOND)


def not_served(error: NotFound) -> bool:
    """Whether the server does not know the kind, rather than the object: then the error names no object."""
    return not error.details.get("name")
