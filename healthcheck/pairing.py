"""Who tests with whom in the next round. Deterministic: the groups follow from the results so far alone.

Round 1 pairs neighbours, and an odd one makes a triple; where nodes are vouched for, it pairs the others with
them. Later rounds test whoever is open against trusted
nodes that it has not met. Suspects meet each other only when no trusted node is free, with one exception: a
pair that failed, while both of its nodes passed elsewhere since, meets again, to tell a link from a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from healthcheck.attribution import ACCUSED, OPEN, Attribution, Standing
from healthcheck.fleet import Domain, Node, NodeName
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


class _Partners:
    """Who may be chosen as a partner, by domain, in the order of preference that is the same for everybody.

    So a choice looks at few heads of queues instead of at all nodes.
    """

    def __init__(
        self,
        ordered: Iterable[NodeName],
        domains: Mapping[NodeName, Domain | None],
        free: Collection[NodeName],
    ) -> None:
        self._free = free
        self._place = {name: place for place, name in enumerate(ordered)}
        self._queues: dict[Domain | None, list[NodeName]] = {}
        for name in reversed(self._place):
            self._queues.setdefault(domains[name], []).append(name)
        self._heads = [(self._place[queue[-1]], domain) for domain, queue in self._queues.items()]
        heapify(self._heads)

    def __contains__(self, name: NodeName) -> bool:
        return name in self._place and name in self._free

    def best_of(self, domain: Domain | None, without: Collection[NodeName] = ()) -> NodeName | None:
        """The first of this domain that is free."""
        queue = self._queues.get(domain, [])
        while queue and queue[-1] not in self._free:
            queue.pop()
        return next((name for name in reversed(queue) if name in self._free and name not in without), None)

    def best_elsewhere(self, domains: Collection[Domain | None]) -> NodeName | None:
        """The first of all other domains that is free."""
        found, looked_at = None, []
        while self._heads and found is None:
            place, domain = heappop(self._heads)
            head = self.best_of(domain)
            if head is None:
                continue
            now = (self._place[head], domain)
            if domain in domains:
                looked_at.append(now)
            elif now[0] > place:
                heappush(self._heads, now)
            else:
                looked_at.append(now)
                found = head
        for entry in looked_at:
            heappush(self._heads, entry)
        return found


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
        good, fair = self._partners(trusted), self._partners(presumed)
        for name in self._by_need(name for name in self._open() if not self._is_presumed(name)):
            self._seat(name, (good, fair), self._may_retest)
        for name in self._by_need(presumed):
            self._seat(name, (good,), self._may_retest)
        suspects = self._by_need(self._open())
        others = self._partners(suspects)
        for name in suspects:
            self._seat(name, (others,), self._may_meet_suspect)
        for name in self._mates_of_cut_off(trusted):
            self._seat(name, (good,), self._is_elsewhere)
        if screening:
            self._screen(trusted)
        return tuple(self._groups)

    def _rerun_pairs(self) -> None:
        for pair in (pair for e in self._evidence for pair in e.attribution.reruns):
            if pair.issubset(self._free):
                self._group(*sorted(pair, key=self._rank.__getitem__))

    def _partners(self, names: Iterable[NodeName]) -> _Partners:
        ordered = sorted(names, key=lambda name: (-self._ledger.passes(name), self._rank[name]))
        return _Partners(ordered, self._domain, self._free)

    def _seat(
        self, name: NodeName, pools: Sequence[_Partners], allowed: Callable[[NodeName, NodeName], bool]
    ) -> None:
        """Groups the node with the allowed partner that it prefers of all in the pools.

        Of the nodes that it has not met, that can only be the first of its own domain, of a domain that it
        has tried, or of all others.
        """
        if name not in self._free:
            return
        partners = [other for trial in self._ledger.of(name) for other in trial.others(name)]
        met, tried = set(partners), Counter(map(self._domain.get, partners))
        near = {self._domain[name], *tried}
        found: set[NodeName | None] = set()
        for pool in pools:
            found.update(other for other in met if other in pool)
            found.update(pool.best_of(domain, {name, *met}) for domain in near)
            found.add(pool.best_elsewhere(near))
        candidates = [other for other in found if other is not None and allowed(name, other)]
        if candidates:
            self._group(name, min(candidates, key=lambda other: self._preference(name, other, tried)))

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

    def _preference(
        self, name: NodeName, partner: NodeName, tried: Mapping[Domain | None, int]
    ) -> tuple[bool, bool, int, int, int, int]:
        """Its own rack once, then who is new to it, from a rack little tried, who passed often; then by rank.

        Its own rack first, so that a node whose rack is cut off from the others is seen to pass inside.
        """
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
