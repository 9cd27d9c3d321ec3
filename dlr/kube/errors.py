"""What the library raises besides Python's own exceptions; each message is one sentence for a person."""

from __future__ import annotations


class ApiError(Exception):
    """The cluster cannot be reached, refuses, or does not have what was asked for."""


class UsageError(ValueError):
    """An argument or option that cannot be meant; nothing has been done."""
