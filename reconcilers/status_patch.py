"""The JSON merge patch that turns one status into another (RFC 7396): removed fields become null."""

from __future__ import annotations

from typing import Any


def merge_patch(current: dict[str, Any], desired: dict[str, Any]) -> dict[str, Any]:
    """The smallest patch; empty if there is nothing to change. Lists are replaced whole."""
    patch: dict[str, Any] = {key: None for key in current if key not in desired}
    for key, value in desired.items():
        present = current.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            inner = merge_patch(present, value)
            if inner:
                patch[key] = inner
        elif key not in current or present != value:
            patch[key] = value
    return patch
