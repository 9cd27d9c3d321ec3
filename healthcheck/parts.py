"""Parts of the network: nodes that reach each other, parts that are cut off, and nodes that reach no other.

*Components* are nodes that pass with each other, directly or through others. A *cut* separates a part
whose nodes pass only among themselves. Nodes *outside* do not reach the main part of the fleet: they are
broken, or healthy behind a cut, which only tests among them can distinguish. If some of them pass with
each other, a node that never passed belongs to them if it passes with them, and is broken otherwise. If
none do, there may still be a part whose nodes have not met.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import lgamma, log

from healthcheck.fleet import NodeName
from healthcheck.trials import Trial

LEAST_NODES = 2
"""Minimum nodes on either side of a cut. A single node that reaches no other is faulty."""
PASSING_PAIRS = 1 / 16
"""Share of passing pairs among all pairs outside, if three times as many nodes are broken as are cut off."""


class Components:
    """Connected components of the graph in which a passed trial connects its members."""

    def __init__(
        self, names: Sequence[NodeName], trials: Iterable[Trial], joined: Sequence[NodeName] = ()
    ) -> None:
        """`names` are in rank order, which decides between components of equal size; `joined` are in one
        component."""
        self._parent = {name: name for name in names}
        if joined:
            self._join(joined)
        for trial in trials:
            if trial.passed:
                self._join(trial.members)
        members: dict[NodeName, list[NodeName]] = {}
        for name in self._parent:
            members.setdefault(self._root(name), []).append(name)
        self.by_size: tuple[tuple[NodeName, ...], ...] = tuple(
            tuple(found) for found in sorted(members.values(), key=lambda found: -len(found))
        )
        """Components, the largest first."""
        self._of: Mapping[NodeName, int] = {
            name: number for number, found in enumerate(self.by_size) for name in found
        }

    def of(self, name: NodeName) -> int:
        """Return the node's component, as its position in `by_size`."""
        return self._of[name]

    def size(self, name: NodeName) -> int:
        return len(self.by_size[self._of[name]])

    def is_in_main(self, name: NodeName) -> bool:
        """Return whether the node is in the largest component, if any two nodes have passed at all."""
        return self._of[name] == 0 and self.size(name) > 1

    def are_cut(self, a: NodeName, b: NodeName) -> bool:
        """Return whether both pass with other nodes, but no chain of passes connects them."""
        return self._of[a] != self._of[b] and self.size(a) > 1 and self.size(b) > 1

    def _root(self, name: NodeName) -> NodeName:
        while self._parent[name] != name:
            self._parent[name] = name = self._parent[self._parent[name]]
        return name

    def _join(self, names: Sequence[NodeName]) -> None:
        first = self._root(names[0])
        for other in names[1:]:
            self._parent.setdefault(other, other)
            self._parent[self._root(other)] = first


@dataclass(frozen=True)
class Cut:
    """Part that is cut off from the largest one."""

    nodes: tuple[NodeName, ...]
    """Nodes in rank order."""
    crossing: tuple[Trial, ...]
    """Its tests with the others, all of which failed."""


@dataclass(frozen=True)
class Cuts:
    proven: tuple[Cut, ...] = ()
    open: frozenset[NodeName] = frozenset()
    """Nodes of parts that failed with the largest one, but were not tested often enough."""


def cuts_of(
    names: Sequence[NodeName],
    crossing: Iterable[Trial],
    components: Components,
    is_proven: Callable[[Collection[NodeName], Collection[Trial]], bool],
    are_apart: Callable[[int], bool],
) -> Cuts:
    """Return the parts that are cut off from the largest one, with enough failed pairs across.

    Components with hardly any failures between them form one part, such as two halves of a rack that have
    not met.

    Args:
        names: all nodes, in rank order.
        crossing: failures between components of two nodes and more.
        is_proven: returns whether these failures of a part, without a pass, exceed bad luck.
        are_apart: returns whether so many failures between two parts, without a pass, exceed bad luck.
    """
    failed = _failed_pairs(crossing, components)
    largest, parts, open_ = {0}, list[set[int]](), set[int]()
    for number in sorted(failed):
        part = components.by_size[number]
        pairs = {pair: t for other in largest for pair, t in failed[number].get(other, {}).items()}
        if number == 0 or not pairs:
            largest.add(number)
        elif _is_cut(pairs, components, number) and is_proven(part, set(pairs.values())):
            between = {other: len(set(met.values())) for other, met in failed[number].items()}
            home = next((p for p in parts if not any(are_apart(between.get(other, 0)) for other in p)), None)
            if home is None:
                parts.append(home := set())
            home.add(number)
        else:
            open_.add(number)
    rank = {name: place for place, name in enumerate(names)}

    def nodes(part: Iterable[int]) -> tuple[NodeName, ...]:
        found = (name for number in part for name in components.by_size[number])
        return tuple(sorted(found, key=rank.__getitem__))

    def trials(part: Iterable[int]) -> tuple[Trial, ...]:
        found = (failed[number][other] for number in sorted(part) for other in failed[number])
        return tuple(dict.fromkeys(trial for pairs in found for trial in pairs.values()))

    return Cuts(tuple(Cut(nodes(part), trials(part)) for part in parts), frozenset(nodes(open_)))


def log_parts(nodes: int, failures: int) -> float:
    """Return the logarithm of the number of parts with `nodes` nodes and `failures` surrounding failures that
    contain a given node.

    Starting at the node, follow one test after the other that leads out of the reached nodes: there is a
    pass for each further node, and there are the failures. Their order determines the part.
    """
    return lgamma(nodes + failures) - lgamma(failures + 1) - lgamma(nodes)


Pairs = dict[frozenset[NodeName], Trial]


def _failed_pairs(crossing: Iterable[Trial], components: Components) -> dict[int, dict[int, Pairs]]:
    """Return the failed pairs by component and by the component on the other side."""
    failed: dict[int, dict[int, Pairs]] = {}
    for trial in crossing:
        for a, b in combinations(trial.members, 2):
            if components.are_cut(a, b):
                one, other = components.of(a), components.of(b)
                for number, against in ((one, other), (other, one)):
                    failed.setdefault(number, {}).setdefault(against, {})[frozenset((a, b))] = trial
    return failed


def _is_cut(pairs: Iterable[frozenset[NodeName]], components: Components, number: int) -> bool:
    names = {name for pair in pairs for name in pair}
    inside = {name for name in names if components.of(name) == number}
    return len(inside) >= LEAST_NODES and len(names - inside) >= LEAST_NODES


class Outside:
    """Failures among nodes that do not reach the main part.

    Args:
        failed: all failed trials of the fleet without another explanation.
        untestable: nodes that cannot be tested further.
        odds: required odds that there is no part whose nodes have not met.
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
        """Return the failures that the node, which never passed, would have behind a cut only by bad luck."""
        if self._have_parts:
            return self._with_parts[name]
        met = self._met.get(name, set())
        if met and (self._is_no_part_unseen or self._testable <= met | {name}):
            return self._failed
        return 0
