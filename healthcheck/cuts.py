"""Parts of the network that are cut off: their nodes pass among themselves, and with no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import lgamma

from healthcheck.components import Components
from healthcheck.fleet import NodeName
from healthcheck.trials import Trial

LEAST_NODES = 2
"""On either side. One node that reaches nobody is a faulty node."""


@dataclass(frozen=True)
class Cut:
    """A part that is cut off from the largest one."""

    nodes: tuple[NodeName, ...]
    """Nodes in rank order."""
    crossing: tuple[Trial, ...]
    """Its tests with the others. All failed."""


@dataclass(frozen=True)
class Cuts:
    proven: tuple[Cut, ...] = ()
    open: frozenset[NodeName] = frozenset()
    """Nodes of parts that failed with the largest one, and have not been tested often enough."""


def cuts_of(
    names: Sequence[NodeName],
    crossing: Iterable[Trial],
    components: Components,
    is_proven: Callable[[Collection[NodeName], Collection[Trial]], bool],
    are_apart: Callable[[int], bool],
) -> Cuts:
    """The parts that are cut off from the largest one, with enough pairs of nodes that failed across.

    Components that hardly failed with each other belong to one part: two halves of a rack that have not met.

    Args:
        names: all nodes, in rank order.
        crossing: failures between components of two nodes and more.
        components: who reaches whom.
        is_proven: whether these failures of a part, with no pass, are more than bad luck.
        are_apart: whether so many failures of two parts with each other, with no pass, are hardly bad luck.
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
    """The logarithm of how many parts of so many nodes, that so many failures surround, one node is in.

    Start at the node, and look at one test after the other that leads out of what is reached: there is a pass
    for each further node, and there are the failures. In which order they come tells the part.
    """
    return lgamma(nodes + failures) - lgamma(failures + 1) - lgamma(nodes)


Pairs = dict[frozenset[NodeName], Trial]


def _failed_pairs(crossing: Iterable[Trial], components: Components) -> dict[int, dict[int, Pairs]]:
    """Return the failed pairs by component and by the one on the other side."""
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
