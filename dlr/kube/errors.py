"""What the library raises besides Python's own exceptions; each message is one sentence for a person."""

from __future__ import annotations

from controller.errors import ApiError, Error, Forbidden, NotFound, StatusCause, Unavailable

__all__ = ["ApiError", "Error", "Forbidden", "NotFound", "StatusCause", "Unavailable", "UsageError"]


class UsageError(Error, ValueError):
    """An argument or option that cannot be meant; nothing has been done."""
