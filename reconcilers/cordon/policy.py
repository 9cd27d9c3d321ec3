"""Which nodes are cordoned, and which cordons are lifted: pure functions.

A decision is the node as it should be: with our taint, or without. The newest finding decides; inconclusive
ones and stragglers do not get here. The finding that was acted upon stays on the Node, in an annotation, when
the NodeCheck or the job that it came from is gone: so a report from before the last passing check does not
count again, and a taint that a person removed stays away until there is a newer finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from crds import names
from crds.findings import Cause, Finding, Verdict

CHECK_PASSED, CHECK_FAILED = "CheckPassed", "CheckFailed"


def reason_of(finding: Finding) -> str:
    """Return the value of our taint, and the reason of our conditions."""
    if finding.healthy:
        return CHECK_PASSED
    if finding.verdict is not Verdict.FAULTY:
        return finding.verdict.value
    is_error = Cause.HARDWARE_ERROR in finding.causes
    return Cause.HARDWARE_ERROR.value if is_error else CHECK_FAILED


ENOUGH_PASSES = 13
"""So many tests in a row that fail three times in ten do not pass by luck, in 99 of 100 cases."""


def read_acted(node: Mapping[str, Any]) -> Finding | None:
    """The finding that was last acted upon, by a raw Node's annotation; an unreadable one is none."""
    written = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_CORDON)
    if written is None:
        return None
    try:
        return Finding.model_validate_json(written)
    except ValidationError:
        return None


def write_acted(finding: Finding) -> str:
    return finding.model_dump_json(by_alias=True, exclude_none=True)


@dataclass(frozen=True)
class NodeCordon:
    """A node's cordon, as it is or as it should be."""

    name: str
    acted: Finding | None = None
    """The newest finding that has been acted upon."""
    taint: str | None = None
    """The value of the taint `unhealthy`; None if there is none."""
    finding: Finding | None = None
    """The newest finding that decides, `acted` included."""
    suspicion: Finding | None = None
    """A newer finding against the node that does not decide."""
    passes: int = 0
    """Tests with others that it passed since `acted`, by its record, and after it failed any."""

    @property
    def cordoned(self) -> bool:
        """Whether the node is cordoned by us."""
        return self.taint is not None and self.acted is not None and not self.acted.healthy

    @property
    def is_accused(self) -> bool:
        """Whether the finding that decides speaks against the node."""
        return self.finding is not None and not self.finding.healthy

    @property
    def is_overruled(self) -> bool:
        """Whether a person removed our taint, and nothing newer speaks against the node."""
        acted, finding = self.acted, self.finding
        if self.taint is not None or acted is None or acted.healthy or finding is None:
            return False
        return not finding.healthy and finding.time <= acted.time

    @property
    def stated(self) -> Finding | None:
        """The finding that our conditions state."""
        if self.cordoned:
            return self.acted
        return self.finding if self.is_accused or self.suspicion is None else self.suspicion


def newest(findings: Iterable[Finding]) -> Finding | None:
    """Return the one that decides. Of two at the same time it is the accusation: only a newer pass clears."""
    return max(findings, key=lambda found: (found.time, not found.healthy, found.source), default=None)


def decide_cordon(node: NodeCordon, *, has_room: bool = True) -> NodeCordon:
    """The node as it should be.

    Args:
        has_room: the limit leaves room for its cordon.
    """
    acted, finding = node.acted, node.finding
    if finding is None:
        return node
    if finding.healthy:
        if acted is None or acted.healthy or _may_come_back(node):
            return node
        return replace(node, acted=finding, taint=None)
    if node.cordoned:
        return replace(node, acted=finding)
    if node.is_overruled or not has_room:
        return node
    return replace(node, acted=finding, taint=reason_of(finding))


def _may_come_back(node: NodeCordon) -> bool:
    """Whether the fault that it was cordoned for would pass a check like this by luck."""
    is_rare = node.acted is not None and node.acted.comes_and_goes
    return node.cordoned and is_rare and node.passes < ENOUGH_PASSES
