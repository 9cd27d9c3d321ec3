"""The mark on a Node: one annotation that says what we set there, and on whose verdict.

It is why a cordon that is not ours is never lifted. It is also the memory of the verdict, which outlives the
NodeCheck and the job that it came from: a report from before the last passing check must not count again
when that check has been deleted.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from crds import names
from crds.model import Model


class VerdictReason(StrEnum):
    """Values of our taint, and reasons of our condition."""

    CHECK_FAILED = "CheckFailed"
    HARDWARE_ERROR = "HardwareError"
    CHECK_PASSED = "CheckPassed"


class Verdict(Model):
    """What one check or one job's worker says about one node."""

    time: datetime
    healthy: bool
    reason: str
    """A `VerdictReason`, or one of a newer controller: its marks must stay readable."""
    kind: str
    namespace: str
    name: str
    """With kind and namespace: the object that says so."""


class MarkState(StrEnum):
    CORDONED = "Cordoned"
    HELD = "Held"
    """To be cordoned, when the limit leaves room."""
    OVERRULED = "Overruled"
    """A person undid the cordon; that stands until there is a newer verdict."""
    LIFTED = "Lifted"
    """The newest verdict says that the node is well."""


class Mark(Model):
    state: MarkState
    verdict: Verdict
    """The newest that has been acted upon."""
    taint: str | None = None
    """The value of the taint that we set; None if we set none."""
    unschedulable: bool = False
    """Whether it was us who set spec.unschedulable."""


def read_mark(node: dict[str, Any]) -> Mark | None:
    """A mark that somebody made unreadable is none: then nothing on the node is known to be ours."""
    written = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_CORDON)
    if written is None:
        return None
    try:
        return Mark.model_validate_json(written)
    except ValidationError:
        return None


def write_mark(mark: Mark) -> str:
    return mark.model_dump_json(by_alias=True, exclude_none=True)
