"""Which nodes are cordoned, and which cordons are lifted: pure functions.

A decision is the node as it should be: with our taint, or without. The newest finding decides; inconclusive
ones and stragglers do not get here. The finding that was acted upon stays on the Node, in an annotation, when
the NodeCheck or the job that it came from is gone: so a report from before the last passing check does not
count again, and a taint that a person removed stays away until there is a newer finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from crds.cordon import reason_of
from crds.findings import Finding
from reconcilers.cordon.domains import Switch

ENOUGH_PASSES = 13
"""So many tests in a row that fail three times in ten do not pass by luck, in 99 of 100 cases."""


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
    switch: Switch | None = None
    """The switch that is to blame for the finding against the node, and for those against its neighbours."""
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


def limit_of(nodes: int, percent: int) -> int:
    """How many of so many nodes may be cordoned by us at once; at least one."""
    return max(1, nodes * percent // 100)
