"""Nodes that do not reach the main part of the fleet: they are broken, or they are well behind a cut.

Tests with the main part cannot tell these apart; tests among these nodes can. If some of them pass with each
other, a node that never passed is one of theirs if it passes with them, and else broken. If none do, there
may still be a part whose nodes have not met.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from math import log

from healthcheck.components import Components
from healthcheck.fleet import NodeName
from healthcheck.trials import Trial

PASSING_PAIRS = 1 / 16
"""Of all pairs out there, if three times as many nodes are broken as are cut off beside them."""


class Outside:
    """What the failures among these nodes say of those that never passed.

    Args:
        nodes: those that do not reach the main part.
        failed: all failed trials of the fleet that no fault of another kind explains.
        components: who reaches whom.
        untestable: nodes that can be tested no further.
        odds: needed, that no part is there whose nodes have not met.
    """

    def __init__(
        self,
        nodes: frozenset[NodeName],
        failed: Iterable[Trial],
        components: Components,
        untestable: Collection[NodeName],
        odds: float,
    ) -> None:
        trials = [trial for trial in failed if nodes.issuperset(trial.members)]
        parts = {name for name in nodes if components.size(name) > 1}
        self._have_parts = bool(parts)
        self._with_parts = Counter(n for t in trials for n in t.members if parts.intersection(t.others(n)))
        self._failed = len(trials)
        self._testable = nodes.difference(untestable)
        self._met: dict[NodeName, set[NodeName]] = defaultdict(set)
        pairs = {frozenset(trial.members) for trial in trials if len(trial.members) == 2}
        for a, b in pairs:
            self._met[a].add(b)
            self._met[b].add(a)
        self._is_no_part_unseen = len(pairs) * -log(1 - PASSING_PAIRS) >= log(odds)

    def failures_against(self, name: NodeName) -> int:
        """The failures that the node, which never passed, would see behind a cut by bad luck alone."""
        if self._have_parts:
            return self._with_parts[name]
        met = self._met.get(name, set())
        if met and (self._is_no_part_unseen or self._testable <= met | {name}):
            return self._failed
        return 0
