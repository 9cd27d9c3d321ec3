"""The groups that test in the next round. Deterministic: they follow from the results so far alone.

*Screening rounds* test all nodes. They are rounds of a round-robin tournament (the circle method), of which
two in a row join all nodes in one chain, and N - 1 let every two meet once. Nodes lie on the circle by racks,
so that nearly all pairs cross racks; where nodes are vouched for, the others meet those.

*Later rounds* test open nodes: with a partner from the main part of the fleet that it has not met, and, as
long as it never passed, also with others from outside of it, of its own rack first: so a part that is cut off
shows, apart from broken nodes. A pair that failed, while both of its nodes passed elsewhere since, meets
again, to distinguish a link from a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest

from healthcheck.attribution import OPEN, Attribution, NodeStanding
from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.trials import Ledger

Group = tuple[NodeName, ...]

MOST_MEETINGS_WITHOUT_A_PASS = 2
"""A node that never passed does not meet a partner again that it failed with so often."""


@dataclass(frozen=True)
class Evidence:
    """One symptom's trials, and their attribution."""

    ledger: Ledger
    attribution: Attribution

    def standing(self, name: NodeName) -> NodeStanding:
        return self.attribution.standings[name]


def screening_groups(nodes: Sequence[Node], rotation: int, ledger: Ledger) -> tuple[Group, ...]:
    """A round that tests all nodes, but for groups that have passed together before.

    Vouched nodes that are not needed idle, as a reserve of witnesses.

    Args:
        rotation: which round of the tournament it is, any number from 0.
    """
    rank = {node.name: place for place, node in enumerate(nodes)}
    vouched = [node.name for node in nodes if node.vouched]
    others = _by_racks([node for node in nodes if not node.vouched])
    turn = rotation % len(vouched) if vouched else 0
    groups: list[Group] = [*zip(others, vouched[turn:] + vouched[:turn], strict=False)]
    left = others[len(groups) :]
    if groups and len(left) == 1:
        groups[-1] = (*groups[-1], *left)
    else:
        groups += circle(left, rotation)
    ordered = sorted(
        (tuple(sorted(group, key=rank.__getitem__)) for group in groups), key=lambda g: rank[g[0]]
    )
    return tuple(group for group in ordered if not _passed_together(group, ledger))


def next_groups(
    nodes: Sequence[Node], evidence: Sequence[Evidence], rotation: int, absent: Collection[NodeName] = ()
) -> tuple[Group, ...]:
    """The groups of a round after the screening; none if no test would help.

    Args:
        evidence: each symptom's, failures first.
        rotation: any number; by it, partners are others in other checks.
        absent: nodes that cannot be tested any more.
    """
    return _Round(nodes, evidence, rotation, absent).groups()


def _by_racks(nodes: Sequence[Node]) -> list[NodeName]:
    """Order the nodes by rank; those of one domain, the largest first, follow its first one."""
    first: dict[Domain, int] = {}
    for place, node in enumerate(nodes):
        for domain in node.domains:
            first.setdefault(domain, place)
    places = {node.name: [*(first[d] for d in reversed(node.domains)), at] for at, node in enumerate(nodes)}
    return sorted(places, key=places.__getitem__)


def circle(names: Sequence[NodeName], rotation: int) -> list[Group]:
    """One round of the tournament; the one without a partner joins a pair. One alone makes no group."""
    size = len(names) + len(names) % 2
    if len(names) < 2:
        return []
    groups: list[Group] = []
    alone: NodeName | None = None
    for place in range(size - 1):
        partner = (rotation - place) % (size - 1)
        if partner == place:
            partner = size - 1
        elif partner < place:
            continue
        if partner < len(names):
            groups.append((names[place], names[partner]))
        else:
            alone = names[place]
    if alone is not None:
        groups[-1] = (*groups[-1], alone)
    return groups


def _passed_together(group: Group, ledger: Ledger) -> bool:
    return all(ledger.met(a, b, passed_only=True) for a, b in combinations(group, 2))


class _Queue:
    """Possible partners in an order of preference. Choosing skips few: those taken, and those met before."""

    def __init__(self, names: Iterable[NodeName], free: Collection[NodeName]) -> None:
        self._free = free
        self._names = list(names)
        self._head = 0

    def first(self, allowed: Callable[[NodeName], bool]) -> NodeName | None:
        return next(filter(allowed, self.left()), None)

    def first_but(self, without: Collection[NodeName]) -> NodeName | None:
        return self.first(lambda name: name not in without)

    def left(self) -> Iterator[NodeName]:
        while self._head < len(self._names) and self._names[self._head] not in self._free:
            self._head += 1
        for place in range(self._head, len(self._names)):
            if self._names[place] in self._free:
                yield self._names[place]


class _Round:
    """Fills one round: a node in a group is no longer free."""

    def __init__(
        self,
        nodes: Sequence[Node],
        evidence: Sequence[Evidence],
        rotation: int,
        absent: Collection[NodeName],
    ) -> None:
        first = rotation % len(nodes) if nodes else 0
        self._evidence = evidence
        self._ledger = evidence[0].ledger
        """Who met whom; every test is in the first symptom's."""
        self._rank = {node.name: rank for rank, node in enumerate(nodes)}
        self._domain = {node.name: node.smallest_domain for node in nodes}
        self._free: dict[NodeName, None] = dict.fromkeys(
            node.name
            for node in (*nodes[first:], *nodes[:first])
            if node.name not in absent and evidence[0].standing(node.name) is not NodeStanding.GUILTY
        )
        self._groups: list[Group] = []

    def groups(self) -> tuple[Group, ...]:
        names = self._good()
        good = _Queue(names, self._free)
        near = self._by_domain(names)
        self._rerun_pairs()
        for evidence in self._evidence:
            self._seat_mates(evidence)
        for name in self._by_need(self._open()):
            if name in self._free and not self._seat_with_neighbour(name, near):
                self._seat(name, good)
        rest = _Queue(self._by_need(self._open()), self._free)
        for name in list(rest.left()):
            if name in self._free:
                self._seat(name, rest)
        return tuple(self._groups)

    def _rerun_pairs(self) -> None:
        for pair in (pair for e in self._evidence for pair in e.attribution.reruns):
            if pair.issubset(self._free):
                self._group(*pair)

    def _seat_mates(self, evidence: Evidence) -> None:
        """Let nodes that may be healthy behind a cut meet others from outside, of their own rack first.

        These are of a part that is cut off, if there is one. Other parts meet the main part first.
        """
        attribution = evidence.attribution
        settled = attribution.outside - attribution.cuts.open
        outside = [name for name in self._free if name in settled]
        cut_off = [name for name in outside if evidence.standing(name) is NodeStanding.CUT_OFF]
        mates = _Queue(cut_off or outside, self._free)
        near = self._by_domain(name for name in outside if self._domain[name] is not None)
        stranded = [n for n in outside if n in attribution.stranded and self._is_mates_turn(n, attribution)]
        for name in stranded:
            if self._domain[name] is not None:
                self._seat_mate(name, near[self._domain[name]])
        for name in stranded:
            self._seat_mate(name, mates)
        for name in stranded:
            self._seat_mate(name, mates, again=True)

    def _is_mates_turn(self, name: NodeName, attribution: Attribution) -> bool:
        """Whether the node meets a mate: in every other test, and in each once the main part cannot help."""
        met = self._partners(name)
        with_mates = sum(met[other] for other in met if other in attribution.outside)
        return name in attribution.accused or 2 * with_mates <= met.total()

    def _seat_mate(self, name: NodeName, pool: _Queue, *, again: bool = False) -> None:
        """Group the node with the first that it has not met, or `again` with the one that it met least."""
        if name not in self._free:
            return
        met = self._partners(name)
        others = (other for other in pool.left() if other != name)
        mate = min(others, key=met.__getitem__, default=None) if again else pool.first_but({name, *met})
        if mate is not None:
            self._group(name, mate)

    def _partners(self, name: NodeName) -> Counter[NodeName]:
        """How often the node met others in groups of two."""
        return Counter(t.others(name)[0] for t in self._ledger.of(name) if len(t.members) == 2)

    def _by_domain(self, names: Iterable[NodeName]) -> dict[Domain | None, _Queue]:
        found: dict[Domain | None, list[NodeName]] = {}
        for name in names:
            found.setdefault(self._domain[name], []).append(name)
        return {domain: _Queue(names, self._free) for domain, names in found.items()}

    def _seat_with_neighbour(self, name: NodeName, near: Mapping[Domain | None, _Queue]) -> bool:
        """Group a node whose tests all left its rack with one from there, if it can.

        That distinguishes the way out of the rack from the node.
        """
        domain = self._domain[name]
        met = {other for trial in self._ledger.of(name) for other in trial.others(name)}
        if domain is None or domain not in near or any(self._domain[other] == domain for other in met):
            return False
        mate = near[domain].first(lambda other: other != name and self._helps(name, other))
        if mate is not None:
            self._group(name, mate)
        return mate is not None

    def _seat(self, name: NodeName, pool: _Queue) -> None:
        """Group the node with the first of the pool that it has not met, or with the one it met least."""
        new = pool.first(
            lambda other: other != name and not self._met(name, other) and self._helps(name, other)
        )
        if new is None:
            again = [other for other in pool.left() if other != name and self._may_meet_again(name, other)]
            new = min(again, key=lambda other: self._met(name, other), default=None)
        if new is not None:
            self._group(name, new)

    def _helps(self, name: NodeName, other: NodeName) -> bool:
        """Whether a test of the two would help: not of two of one part that is cut off from the main one."""
        components = self._evidence[0].attribution.components
        return components.of(name) != components.of(other) or components.is_in_main(name)

    def _may_meet_again(self, name: NodeName, other: NodeName) -> bool:
        if not self._helps(name, other):
            return False
        if self._ledger.passes(name) and self._ledger.passes(other):
            return True
        return self._met(name, other) < MOST_MEETINGS_WITHOUT_A_PASS

    def _good(self) -> list[NodeName]:
        """Partners: the main part first, then those without failures, then with many passes, rack by rack."""
        trusted = {NodeStanding.TRUSTED, NodeStanding.CLEARED}
        buckets: dict[tuple[bool, bool, int], dict[Domain | None, list[NodeName]]] = {}
        components = self._evidence[0].attribution.components
        for name in self._free:
            if all(e.standing(name) in trusted for e in self._evidence):
                key = (
                    not components.is_in_main(name),
                    bool(self._ledger.failures(name)),
                    -min(2, self._ledger.passes(name)),
                )
                buckets.setdefault(key, {}).setdefault(self._domain[name], []).append(name)
        return [
            name
            for _, racks in sorted(buckets.items(), key=lambda item: item[0])
            for name in chain.from_iterable(zip_longest(*racks.values()))
            if name is not None
        ]

    def _open(self) -> list[NodeName]:
        return [name for name in self._free if any(e.standing(name) in OPEN for e in self._evidence)]

    def _by_need(self, names: Iterable[NodeName]) -> list[NodeName]:
        """Nodes by their number of tests, so that none waits for ever where trusted nodes are few."""
        return sorted(names, key=lambda name: (len(self._ledger.of(name)), self._rank[name]))

    def _group(self, *members: NodeName) -> None:
        self._groups.append(tuple(sorted(members, key=self._rank.__getitem__)))
        for member in members:
            del self._free[member]

    def _met(self, name: NodeName, other: NodeName) -> int:
        return self._ledger.met(name, other)
