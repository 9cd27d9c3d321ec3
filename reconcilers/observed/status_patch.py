"""The JSON merge patch that turns one status into another (RFC 7396): removed fields become null."""

from __future__ import annotations

from typing import Any, cast

from pydantic import ValidationError

from controller.reconciler import TerminalError
from crds.model import WRITTEN, Model
from crds.texts import all_plain


def merge_patch(current: dict[str, Any], desired: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest patch; empty if there is nothing to change. Lists are replaced whole."""
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
    """Return the patch from the stored status to this one, which is validated if there is anything to write.

    Raises:
        StatusBeyondLimits: the message names the field. That is a bug of the controller.
    """
    wire = status.to_wire() if wire is None else wire
    patch = patch_of(stored, wire)
    if patch:
        validated(status, wire)
    return patch


def patch_of(stored: dict[str, Any], wire: dict[str, Any]) -> dict[str, Any]:
    """Return the patch from the stored status to this one, without control characters."""
    return merge_patch(stored, all_plain(wire)) if merge_patch(stored, wire) else {}


class StatusBeyondLimits(TerminalError):
    """A status beyond its own limits: the API server would refuse it at every attempt."""


def validated(status: Model, wire: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the wire form of a status, checked against its model's limits, which `model_copy` ignores.

    Control characters in texts of Pods, kubelets and agents are removed: people read them on terminals.

    Raises:
        StatusBeyondLimits: the message names the field. That is a bug of the controller.
    """
    wire = all_plain(status.to_wire() if wire is None else wire)
    try:
        type(status).model_validate(wire, context=WRITTEN)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, ("status", *first["loc"])))
        more = f" (and {error.error_count() - 1} more fields)" if error.error_count() > 1 else ""
        raise StatusBeyondLimits(
            f"{path} is beyond its limit, so the status is not written: {first['msg']}{more}"
        ) from error
    return cast(dict[str, Any], wire)
