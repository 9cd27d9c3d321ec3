"""Who tests with whom in the next round. Deterministic: the groups follow from the results so far alone.

Round 1 pairs neighbours, and an odd one makes a triple; where nodes are vouched for, it pairs the others with
them. Later rounds test whoever is open against trusted
nodes that it has not met. Suspects meet each other only when no trusted node is free, with one exception: a
pair that failed, while both of its nodes passed elsewhere since, meets again, to tell a link from a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from healthcheck.attribution import ACCUSED, OPEN, Attribution, Standing
from healthcheck.fleet import Node, NodeName
from healthcheck.trials import Ledger

Group = tuple[NodeName, ...]

MOST_MEETINGS_WITHOUT_A_PASS = 2
"""A node that never passed learns nothing more from a partner it failed with so often."""


@dataclass(frozen=True)
class Evidence:
    """One symptom's trials, and what they say."""

    ledger: Ledger
    attribution: Attribution

    def standing(self, name: NodeName) -> Standing:
        return self.attribution.standings[name]


def opening_groups(nodes: Sequence[Node]) -> tuple[Group, ...]:
    """The groups of the first round: with a vouched partner where there is one, and else neighbours.

    Vouched nodes that nobody needs idle, as a reserve of witnesses.
    """
    open_ones = [node.name for node in nodes if not node.vouched]
    vouched = [node.name for node in nodes if node.vouched]
    groups = tuple(zip(open_ones, vouched, strict=False))
    left = open_ones[len(vouched) :]
    if groups and len(left) == 1:
        return (*groups[:-1], (*groups[-1], *left))
    return groups + neighbours(left)


def neighbours(nodes: Sequence[NodeName]) -> tuple[Group, ...]:
    """Pairs of neighbours in the given order; an odd one joins the last pair. One alone makes no group."""
    if len(nodes) < 2:
        return ()
    groups = [tuple(nodes[at : at + 2]) for at in range(0, len(nodes), 2)]
    if len(nodes) % 2:
        groups[-2:] = [groups[-2] + groups[-1]]
    return tuple(groups)


def next_groups(
    nodes: Sequence[Node],
    evidence: Sequence[Evidence],
    screening: bool,
    absent: Collection[NodeName] = (),
) -> tuple[Group, ...]:
    """The groups of a round after the first; none if no test would tell more.

    Args:
        nodes: all nodes of the check, in rank order, but for those that take no part any more.
        evidence: each symptom's, failures first: a slow node may still be asked about its failures.
        screening: whether nodes that are trusted already are to meet further partners too.
        absent: nodes that cannot be tested any more.
    """
    return _Round(nodes, evidence, absent).groups(screening)


class _Round:
    """Fills one round: whoever is in a group is no longer free."""

    def __init__(
        self, nodes: Sequence[Node], evidence: Sequence[Evidence], absent: Collection[NodeName]
    ) -> None:
        self._evidence = evidence
        self._ledger = evidence[0].ledger
        """Who met whom; every test is in the first symptom's."""
        self._rank = {node.name: rank for rank, node in enumerate(nodes)}
        self._domain = {node.name: node.smallest_domain for node in nodes}
        self._free: dict[NodeName, None] = dict.fromkeys(
            node.name
            for node in nodes
            if node.name not in absent and evidence[0].standing(node.name) is not Standing.GUILTY
        )
        self._groups: list[Group] = []

    def groups(self, screening: bool) -> tuple[Group, ...]:
        trusted = self._trusted()
        self._rerun_pairs()
        presumed = [name for name in self._free if self._is_presumed(name)]
        for name in self._by_need(name for name in self._open() if not self._is_presumed(name)):
            self._seat(name, [*trusted, *presumed], self._may_retest)
        for name in self._by_need(presumed):
            self._seat(name, trusted, self._may_retest)
        suspects = self._by_need(self._open())
        for name in suspects:
            self._seat(name, suspects, self._may_meet_suspect)
        for name in self._mates_of_cut_off(trusted):
            self._seat(name, trusted, self._is_elsewhere)
        if screening:
            self._screen(trusted)
        return tuple(self._groups)

    def _rerun_pairs(self) -> None:
        for pair in (pair for e in self._evidence for pair in e.attribution.reruns):
            if pair.issubset(self._free):
                self._group(*sorted(pair, key=self._rank.__getitem__))

    def _seat(
        self, name: NodeName, partners: Iterable[NodeName], allowed: Callable[[NodeName, NodeName], bool]
    ) -> None:
        if name not in self._free:
            return
        candidates = [p for p in partners if p != name and p in self._free and allowed(name, p)]
        if candidates:
            self._group(name, min(candidates, key=lambda other: self._preference(name, other)))

    def _screen(self, trusted: Sequence[NodeName]) -> None:
        """Pairs whoever is free with the next that it has not met, rather in another domain."""
        waiting = [name for name in trusted if name in self._free]
        while waiting:
            name = waiting.pop(0)
            new = [partner for partner in waiting if not self._met(name, partner)]
            partner = next((p for p in new if self._is_elsewhere(name, p)), new[0] if new else None)
            if partner is not None:
                waiting.remove(partner)
                self._group(name, partner)

    def _preference(self, name: NodeName, partner: NodeName) -> tuple[bool, bool, int, int, int, int]:
        """Its own rack once, then who is new to it, from a rack little tried, who passed often; then by rank.

        Its own rack first, so that a node whose rack is cut off from the others is seen to pass inside.
        """
        tried = Counter(
            self._domain.get(other) for trial in self._ledger.of(name) for other in trial.others(name)
        )
        domain = self._domain[partner]
        return (
            self._is_presumed(partner),
            self._is_elsewhere(name, partner) and not tried[self._domain[name]],
            self._met(name, partner),
            tried[domain],
            -self._ledger.passes(partner),
            self._rank[partner],
        )

    def _by_need(self, names: Iterable[NodeName]) -> list[NodeName]:
        """Whoever was tested least first, so that none waits for ever where trusted nodes are few."""
        return sorted(names, key=lambda name: (len(self._ledger.of(name)), self._rank[name]))

    def _may_retest(self, name: NodeName, partner: NodeName) -> bool:
        return self._ledger.passes(name) > 0 or self._met(name, partner) < MOST_MEETINGS_WITHOUT_A_PASS

    def _may_meet_suspect(self, name: NodeName, partner: NodeName) -> bool:
        """Two that failed together learn nothing from each other."""
        together = self._ledger.of_pair(frozenset((name, partner)))
        return not together or together[-1].passed

    def _is_elsewhere(self, name: NodeName, partner: NodeName) -> bool:
        return self._domain[name] != self._domain[partner]

    def _mates_of_cut_off(self, trusted: Iterable[NodeName]) -> list[NodeName]:
        """Trusted nodes of a domain that somebody is cut off in, and that have not been tested beyond it."""
        domains = {self._domain.get(name) for e in self._evidence for name in e.attribution.cut_off}
        return [
            name
            for name in trusted
            if self._domain[name] in domains
            and not any(
                self._is_elsewhere(name, other)
                for trial in self._ledger.of(name)
                for other in trial.others(name)
            )
        ]

    def _open(self) -> list[NodeName]:
        return [name for name in self._free if self._has(name, OPEN)]

    def _trusted(self) -> list[NodeName]:
        good = {Standing.TRUSTED, Standing.CLEARED}
        return [name for name in self._free if all(e.standing(name) in good for e in self._evidence)]

    def _is_presumed(self, name: NodeName) -> bool:
        return self._has(name, {Standing.PRESUMED}) and not self._has(name, ACCUSED)

    def _has(self, name: NodeName, standings: Collection[Standing]) -> bool:
        return any(e.standing(name) in standings for e in self._evidence)

    def _group(self, *members: NodeName) -> None:
        self._groups.append(members)
        for member in members:
            del self._free[member]

    def _met(self, name: NodeName, other: NodeName) -> int:
        return self._ledger.met(name, other)
