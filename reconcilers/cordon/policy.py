"""Which nodes are cordoned, and which cordons are lifted: pure functions.

A decision is the node as it should be. The newest finding decides; inconclusive ones and stragglers do not
get here. The taint is ours alone. The mark, an annotation on the Node, says whether `spec.unschedulable` is
ours, too, so that a cordon of others is never lifted. It keeps the finding when the NodeCheck or the job that
it came from is gone, so that a report from before the last passing check does not count again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from crds import names
from crds.findings import Cause, Finding, Verdict
from crds.model import Model
from reconcilers.cordon.options import ALL_NODES

CHECK_PASSED, CHECK_FAILED = "CheckPassed", "CheckFailed"


def reason_of(finding: Finding) -> str:
    """Return the value of our taint, and the reason of our conditions."""
    if finding.healthy:
        return CHECK_PASSED
    if finding.verdict is not Verdict.FAULTY:
        return finding.verdict.value
    is_error = Cause.HARDWARE_ERROR in finding.causes
    return Cause.HARDWARE_ERROR.value if is_error else CHECK_FAILED


MAX_EVIDENCE = 240
"""Characters of a finding's evidence in a mark, which is in every copy of the Node that somebody watches."""


ENOUGH_PASSES = 13
"""So many tests in a row that fail three times in ten do not pass by luck, in 99 of 100 cases."""


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
    finding: Finding
    """The newest finding that has been acted upon."""
    unschedulable: bool = False
    """Whether it was us who set spec.unschedulable."""
    full: str | None = None
    """The full pool for which a node is held."""


def read_mark(node: dict[str, Any]) -> Mark | None:
    """An unreadable mark is none: then nothing on the node counts as ours."""
    written = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_CORDON)
    if written is None:
        return None
    try:
        return Mark.model_validate_json(written)
    except ValidationError:
        return None


def write_mark(mark: Mark) -> str:
    return mark.model_dump_json(by_alias=True, exclude_none=True)


@dataclass(frozen=True)
class NodeState:
    """A node's cordon, as it is or as it should be."""

    name: str
    mark: Mark | None = None
    taint: str | None = None
    """The value of the taint `unhealthy`; None if there is none."""
    unschedulable: bool = False
    finding: Finding | None = None
    """The newest finding that decides, that of the mark included."""
    suspicion: Finding | None = None
    """A newer finding against the node that does not decide."""
    passes: int = 0
    """Tests with others that it passed since the mark's finding, by its record, and after it failed any."""
    pools: frozenset[str] = frozenset()
    """The node's pools beside ALL_NODES, whose limits hold for it (`options.pools_of`)."""

    @property
    def cordoned(self) -> bool:
        """Whether the node is cordoned by us."""
        return self.mark is not None and self.mark.state is MarkState.CORDONED


def newest(findings: Iterable[Finding]) -> Finding | None:
    """Return the one that decides. Of two at the same time it is the accusation: only a newer pass clears."""
    return max(findings, key=lambda found: (found.time, not found.healthy, found.source), default=None)


def decide_cordon(node: NodeState, full: str | None = None) -> NodeState:
    """The node as it should be.

    Args:
        full: the pool that has no room for its cordon (`full_pool`); None if there is room.
    """
    if node.mark is not None and node.cordoned and _is_undone(node, node.mark):
        node = _released(node, MarkState.OVERRULED, node.mark.finding)
    mark, finding = node.mark, node.finding
    if finding is None:
        return node
    if finding.healthy:
        if mark is None or mark.state is MarkState.LIFTED or _may_come_back(node, mark):
            return node
        return _released(node, MarkState.LIFTED, finding)
    if mark is not None and mark.state is MarkState.OVERRULED and finding.time <= mark.finding.time:
        return node
    if mark is not None and mark.state is MarkState.CORDONED:
        return replace(node, mark=mark.model_copy(update={"finding": finding}))
    if full is not None:
        return replace(node, mark=Mark(state=MarkState.HELD, finding=finding, full=full))
    return _cordoned(node, finding)


def full_pool(node: NodeState, taken: Callable[[str], int], limit: Callable[[str], int]) -> str | None:
    """Return the first pool that has no room for a node that is not cordoned; None if all have.

    Args:
        taken: the number of nodes in a pool that are cordoned by us.
        limit: how many may be.
    """
    return next((pool for pool in (ALL_NODES, *sorted(node.pools)) if taken(pool) >= limit(pool)), None)


def _may_come_back(node: NodeState, mark: Mark) -> bool:
    """Whether the fault that it was cordoned for would pass a check like this by luck."""
    accused = mark.state in (MarkState.CORDONED, MarkState.HELD)
    return accused and mark.finding.comes_and_goes and node.passes < ENOUGH_PASSES


def _is_undone(node: NodeState, mark: Mark) -> bool:
    """Whether something that we set is no longer there."""
    return node.taint is None or (mark.unschedulable and not node.unschedulable)


def _cordoned(node: NodeState, finding: Finding) -> NodeState:
    """The node with our cordon; a cordon that was there before is not claimed."""
    mark = Mark(state=MarkState.CORDONED, finding=finding, unschedulable=not node.unschedulable)
    return replace(node, mark=mark, taint=reason_of(finding), unschedulable=True)


def _released(node: NodeState, state: MarkState, finding: Finding) -> NodeState:
    """The node without what we set."""
    was_ours = node.mark is not None and node.mark.unschedulable
    return replace(
        node,
        mark=Mark(state=state, finding=finding),
        taint=None if node.cordoned else node.taint,
        unschedulable=node.unschedulable and not was_ours,
    )
