"""Traces of a cordon on a Node: the finding that caused it, and the messages on nodes left in service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from crds import names
from crds.findings import Cause, Finding, Verdict

CHECK_PASSED, CHECK_FAILED = "CheckPassed", "CheckFailed"
MOST_KEPT = 4_096
"""Characters of each text that dlr keeps in an annotation of a Node."""


def reason_of(finding: Finding) -> str:
    """Return the value of our taint, and the reason of our conditions."""
    if finding.healthy:
        return CHECK_PASSED
    if finding.verdict is not Verdict.FAULTY:
        return finding.verdict.value
    is_error = Cause.HARDWARE_ERROR in finding.causes
    return Cause.HARDWARE_ERROR.value if is_error else CHECK_FAILED


def kept_on(node: Mapping[str, Any], annotation: str) -> str | None:
    """Return the text that dlr keeps in an annotation of a raw Node; one that is too long is not dlr's."""
    written: str | None = (node["metadata"].get("annotations") or {}).get(annotation)
    return written if written is not None and len(written) <= MOST_KEPT else None


def read_acted(node: Mapping[str, Any]) -> Finding | None:
    """Return the finding that was last acted on, from the annotation of a raw Node; None if it is
    unreadable."""
    written = kept_on(node, names.ANNOTATION_CORDON)
    if written is None:
        return None
    try:
        finding = Finding.model_validate_json(written)
    except ValidationError:
        return None
    return finding if finding.is_dated else None


def write_acted(finding: Finding) -> str:
    return finding.model_dump_json(by_alias=True, exclude_none=True)


NOT_ENFORCED = "not cordoned: the controller runs with --cordon=report"
"""Message on a node that a dry run leaves in service."""
HELD_BACK = "not cordoned: as many nodes are as --cordon-limit allows"
"""Message on a node that the limit leaves in service."""
