"""What the library raises besides Python's own exceptions; each message is one sentence for a person."""

from __future__ import annotations

from agent.kube.errors import ApiError, Cause, ForbiddenError, NotFoundError, UnavailableError

__all__ = ["ApiError", "Cause", "ForbiddenError", "NotFoundError", "UnavailableError", "UsageError"]


class UsageError(ValueError):
    """An argument or option that cannot be meant; nothing has been done."""
