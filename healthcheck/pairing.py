"""Groups of the next round, determined only by the results so far.

*Screening rounds* test all nodes. They are rounds of a round-robin tournament (the circle method): two
consecutive ones connect all nodes in one chain, and in N - 1 every pair meets once. Nodes are ordered on
the circle by racks, so that nearly all pairs cross racks; if some nodes are vouched for, the others meet
those.

*Later rounds* test open nodes: with a new partner from the main part of the fleet, and, if the node never
passed, also with others outside it, from its own rack first. So a part that is cut off can be told apart
from broken nodes. A pair that failed, although both nodes passed elsewhere since, meets again, to
distinguish a link from a node.
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
"""Maximum meetings with a partner without a pass, for a node that never passed."""


@dataclass(frozen=True)
class Evidence:
    """Trials of one symptom, and their attribution."""

    ledger: Ledger
    attribution: Attribution

    def standing(self, name: NodeName) -> NodeStanding:
        return self.attribution.standings[name]


def screening_groups(nodes: Sequence[Node], rotation: int, ledger: Ledger) -> tuple[Group, ...]:
    """Return a round that tests all nodes, without groups that have passed together before.

    Vouched nodes that are not needed stay idle, as a reserve of witnesses.

    Args:
        rotation: number of the tournament's round, from 0.
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
    """Return the groups of a round after the screening; none if no test would help.

    Args:
        evidence: evidence of each symptom, failures first.
        rotation: any number; it varies the partners between checks.
        absent: nodes that cannot be tested further.
    """
    return _Round(nodes, evidence, rotation, absent).groups()


def _by_racks(nodes: Sequence[Node]) -> list[NodeName]:
    """Order the nodes by rank; nodes of one domain, largest domains first, follow the domain's first node."""
    first: dict[Domain, int] = {}
    for place, node in enumerate(nodes):
        for domain in node.domains:
            first.setdefault(domain, place)
    places = {node.name: [*(first[d] for d in reversed(node.domains)), at] for at, node in enumerate(nodes)}
    return sorted(places, key=places.__getitem__)


def circle(names: Sequence[NodeName], rotation: int) -> list[Group]:
    """Return one round of the tournament; a node without a partner joins a pair. A single node forms no
    group."""
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
    """Possible partners in order of preference, without those already grouped."""

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
    """Builder of one round: a node in a group is no longer free."""

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
        """Ledger of all meetings: every test is in the first symptom's."""
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
        """Group nodes that may be healthy behind a cut with others from outside, of their own rack first.

        The partners are from a part that is cut off, if there is one. Other parts meet the main part
        first.
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
        """Return whether the node meets an outside partner: in every other test, and always once the main
        part cannot help."""
        met = self._partners(name)
        with_mates = sum(met[other] for other in met if other in attribution.outside)
        return name in attribution.accused or 2 * with_mates <= met.total()

    def _seat_mate(self, name: NodeName, pool: _Queue, *, again: bool = False) -> None:
        """Group the node with the first partner that it has not met, or, with `again`, with the one it met
        least."""
        if name not in self._free:
            return
        met = self._partners(name)
        others = (other for other in pool.left() if other != name)
        mate = min(others, key=met.__getitem__, default=None) if again else pool.first_but({name, *met})
        if mate is not None:
            self._group(name, mate)

    def _partners(self, name: NodeName) -> Counter[NodeName]:
        """Return how often the node met each partner in groups of two."""
        return Counter(t.others(name)[0] for t in self._ledger.of(name) if len(t.members) == 2)

    def _by_domain(self, names: Iterable[NodeName]) -> dict[Domain | None, _Queue]:
        found: dict[Domain | None, list[NodeName]] = {}
        for name in names:
            found.setdefault(self._domain[name], []).append(name)
        return {domain: _Queue(names, self._free) for domain, names in found.items()}

    def _seat_with_neighbour(self, name: NodeName, near: Mapping[Domain | None, _Queue]) -> bool:
        """Group a node with one from its own rack, if all its tests so far left the rack; return whether it
        could.

        This distinguishes the rack's uplink from the node.
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
        """Return whether a test of the two would help, unlike one within a part that is cut off."""
        components = self._evidence[0].attribution.components
        return components.of(name) != components.of(other) or components.is_in_main(name)

    def _may_meet_again(self, name: NodeName, other: NodeName) -> bool:
        if not self._helps(name, other):
            return False
        if self._ledger.passes(name) and self._ledger.passes(other):
            return True
        return self._met(name, other) < MOST_MEETINGS_WITHOUT_A_PASS

    def _good(self) -> list[NodeName]:
        """Return partners: the main part first, then nodes without failures, then with many passes, mixed by
        rack."""
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
        """Return nodes by their number of tests, so that none waits forever if trusted nodes are few."""
        return sorted(names, key=lambda name: (len(self._ledger.of(name)), self._rank[name]))

    def _group(self, *members: NodeName) -> None:
        self._groups.append(tuple(sorted(members, key=self._rank.__getitem__)))
        for member in members:
            del self._free[member]

    def _met(self, name: NodeName, other: NodeName) -> int:
        return self._ledger.met(name, other)
