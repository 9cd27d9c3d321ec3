"""The JSON merge patch that turns one status into another (RFC 7396): removed fields become null."""

from __future__ import annotations

from typing import Any

from crds.model import Model, validated


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


def validated_patch(
    stored: dict[str, Any], status: Model, wire: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The patch from the stored status to this one, which is validated if there is anything to write.

    Args:
        wire: its wire form, where that is less than `to_wire` tells.

    Raises:
        StatusBeyondLimits: the message names the field. That is a bug of the controller.
    """
    wire = status.to_wire() if wire is None else wire
    patch = merge_patch(stored, wire)
    if patch:
        validated(status, wire)
    return patch
