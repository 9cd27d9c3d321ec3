"""Exceptions of the library besides Python's own; each message is one sentence for a person."""

from __future__ import annotations

from controller.errors import ApiError, Error, Forbidden, NotFound, StatusCause, Unavailable

__all__ = ["ApiError", "Error", "Forbidden", "NotFound", "StatusCause", "Unavailable", "UsageError"]


class UsageError(Error, ValueError):
    """An argument or option is invalid; nothing was done."""
