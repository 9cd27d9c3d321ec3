"""Decides which nodes are cordoned, and which cordons are lifted. Pure.

A decision is the desired state of a node: with our taint, or without. The newest finding decides;
inconclusive ones and stragglers do not get here. The finding that was acted upon stays on the Node, in an
annotation, when its NodeCheck or job is gone: so a report from before the last passed check does not count
again, and a taint that a person removed stays removed until there is a newer finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from crds.cordon import reason_of
from crds.findings import Finding
from reconcilers.cordon.domains import Switch

ENOUGH_PASSES = 13
"""Passed tests in a row that clear an intermittent fault: one that fails three tests in ten passes as many
by chance in only 1 of 100 cases."""


@dataclass(frozen=True)
class NodeCordon:
    """A node's cordon, in its present or desired state."""

    name: str
    acted: Finding | None = None
    """The newest finding that has been acted upon."""
    taint: str | None = None
    """The value of the taint `unhealthy`; None if there is none."""
    finding: Finding | None = None
    """The deciding finding: the newest, `acted` included."""
    suspicion: Finding | None = None
    """A newer finding against the node that does not decide."""
    switch: Switch | None = None
    """The switch to which the findings against the node and its neighbours point."""
    passes: int = 0
    """Number of tests with other nodes that it has passed since `acted`, and since its last failure."""

    @property
    def cordoned(self) -> bool:
        """Whether the node is cordoned by us."""
        return self.taint is not None and self.acted is not None and not self.acted.healthy

    @property
    def is_accused(self) -> bool:
        """Whether the deciding finding is against the node."""
        return self.finding is not None and not self.finding.healthy

    @property
    def is_overruled(self) -> bool:
        """Whether a person removed our taint, and there is no newer finding against the node."""
        acted, finding = self.acted, self.finding
        if self.taint is not None or acted is None or acted.healthy or finding is None:
            return False
        return not finding.healthy and finding.time <= acted.time

    @property
    def stated(self) -> Finding | None:
        """The finding in our conditions."""
        if self.cordoned:
            return self.acted
        return self.finding if self.is_accused or self.suspicion is None else self.suspicion


def newest(findings: Iterable[Finding]) -> Finding | None:
    """Return the deciding finding: the newest; of two at the same time, the accusation."""
    return max(findings, key=lambda found: (found.time, not found.healthy, found.source), default=None)


def decide_cordon(node: NodeCordon, has_room: Callable[[], bool] = lambda: True) -> NodeCordon:
    """The desired state of the node.

    Args:
        has_room: returns whether the limit leaves room for its cordon.
    """
    acted, finding = node.acted, node.finding
    if finding is None:
        return node
    if finding.healthy:
        if acted is None or acted.healthy or _may_pass_by_chance(node):
            return node
        return replace(node, acted=finding, taint=None)
    if node.cordoned:
        return replace(node, acted=finding)
    if node.is_overruled or not has_room():
        return node
    return replace(node, acted=finding, taint=reason_of(finding))


def _may_pass_by_chance(node: NodeCordon) -> bool:
    """Whether the node may have passed although its intermittent fault persists."""
    is_rare = node.acted is not None and node.acted.comes_and_goes
    return node.cordoned and is_rare and node.passes < ENOUGH_PASSES
