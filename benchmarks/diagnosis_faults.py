"""What can be wrong with a simulated fleet, and how such fleets are drawn, for diagnosis.py."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations


@dataclass(frozen=True)
class Fleet:
    """Nodes and what is wrong with them. Nodes are numbered from 0, which is their rank."""

    size: int
    failing: Mapping[int, float] = field(default_factory=dict)
    """Node → probability that a test with it fails."""
    bad_links: Mapping[frozenset[int], float] = field(default_factory=dict)
    liars: frozenset[int] = frozenset()
    """Nodes whose bad links are their own doing: they fail with some of their partners, always."""
    slow_compute: Mapping[int, float] = field(default_factory=dict)
    """Node → how many times longer its matrix products take."""
    slow_network: Mapping[int, float] = field(default_factory=dict)
    racks: tuple[int, ...] = ()
    """The rack of each node; empty: one network without parts."""
    labelled: bool = True
    """Whether the nodes' labels tell their racks."""
    cut_off: int | None = None
    """This rack's nodes reach each other, and nobody else."""
    flaky_border: int | None = None
    """The rack across whose border half of the tests fail."""
    transient: float = 0.0
    """Probability that a test fails for no reason that lasts."""
    lost: float = 0.0
    """Probability that a node's answer in a round is late or lost."""
    vouched: frozenset[int] = frozenset()
    """Nodes that passed an earlier check, not long ago."""

    @property
    def faulty_nodes(self) -> frozenset[int]:
        return frozenset((*self.failing, *self.slow_compute, *self.slow_network, *self.liars))

    @property
    def faulty_links(self) -> frozenset[frozenset[int]]:
        """Return the links that are faulty by themselves, not by a node."""
        return frozenset(pair for pair in self.bad_links if pair.isdisjoint(self.liars))

    @property
    def faulty_racks(self) -> frozenset[int]:
        """Racks that are cut off, now and then or always, or whose nodes all fail."""
        dead = {r for r in set(self.racks) if all(n in self.failing for n in self.in_rack(r))}
        return frozenset(dead | {rack for rack in (self.cut_off, self.flaky_border) if rack is not None})

    def in_rack(self, rack: int) -> frozenset[int]:
        return frozenset(node for node, its in enumerate(self.racks) if its == rack)

    def test_passes(self, members: Sequence[int], rng: random.Random) -> bool:
        """One test: every faulty part in the group may fail it."""
        if self.cut_off is not None and len({self.racks[m] == self.cut_off for m in members}) > 1:
            return False
        inside = {self.racks[m] == self.flaky_border for m in members} if self.racks else set()
        if len(inside) > 1 and rng.random() < 0.5:
            return False
        risks = [self.failing.get(member, 0.0) for member in members]
        risks += [self.bad_links.get(frozenset(pair), 0.0) for pair in combinations(members, 2)]
        return all(rng.random() >= risk for risk in (*risks, self.transient))


Draw = Callable[[random.Random], Fleet]


def failing(size: int, count: int, probability: float = 1.0) -> Draw:
    return lambda rng: Fleet(size, failing=dict.fromkeys(rng.sample(range(size), count), probability))


def vouched_bad(size: int, count: int) -> Draw:
    """All nodes that passed lately have broken since."""

    def draw(rng: random.Random) -> Fleet:
        bad = rng.sample(range(size), count)
        return Fleet(size, failing=dict.fromkeys(bad, 1.0), vouched=frozenset(bad))

    return draw


def dead_racks(size: int, rack_size: int, count: int) -> Draw:
    def draw(rng: random.Random) -> Fleet:
        racks = _racks(size, rack_size)
        dead = rng.sample(range(max(racks) + 1), count)
        nodes = [node for node, rack in enumerate(racks) if rack in dead]
        return Fleet(size, failing=dict.fromkeys(nodes, 1.0), racks=racks)

    return draw


def cut_off(size: int, rack_size: int, *, labelled: bool, shuffled: bool) -> Draw:
    """One rack, or with half of the nodes in it one half, that reaches nobody else.

    Args:
        size: nodes.
        rack_size: of every rack; the last one may be smaller, and is not the one that is cut off.
        labelled: whether labels tell the racks.
        shuffled: whether ranks follow no racks.
    """

    def draw(rng: random.Random) -> Fleet:
        racks = _racks(size, rack_size)
        rack = rng.randrange(size // rack_size)
        if shuffled:
            racks = tuple(rng.sample(racks, size))
        return Fleet(size, racks=racks, labelled=labelled, cut_off=rack)

    return draw


def in_racks(draw: Draw, rack_size: int) -> Draw:
    """The same fleets, in racks that labels tell."""

    def with_racks(rng: random.Random) -> Fleet:
        fleet = draw(rng)
        return replace(fleet, racks=_racks(fleet.size, rack_size))

    return with_racks


def flaky_border(size: int, rack_size: int) -> Draw:
    """One labelled rack loses half of what crosses its border, and nothing is wrong inside."""
    racks = _racks(size, rack_size)
    return lambda rng: Fleet(size, racks=racks, flaky_border=rng.randrange(size // rack_size))


def links(size: int, count: int, *, at_one_node: bool = False, probability: float = 1.0) -> Draw:
    """Bad links anywhere, or all at one node."""

    def draw(rng: random.Random) -> Fleet:
        if at_one_node:
            node, *others = rng.sample(range(size), count + 1)
            pairs = [frozenset((node, other)) for other in others]
        else:
            pairs = [frozenset(pair) for pair in rng.sample(list(combinations(range(size), 2)), count)]
        return Fleet(size, bad_links=dict.fromkeys(pairs, probability))

    return draw


def liar(size: int, partners: int) -> Draw:
    """One node that always fails with so many of the others, and never with the rest."""

    def draw(rng: random.Random) -> Fleet:
        node, *others = rng.sample(range(size), partners + 1)
        pairs = [frozenset((node, other)) for other in others]
        return Fleet(size, bad_links=dict.fromkeys(pairs, 1.0), liars=frozenset((node,)))

    return draw


def with_accidents(draw: Draw, share: float) -> Draw:
    """The same fleets, where so many tests fail besides for no reason that lasts."""
    return lambda rng: replace(draw(rng), transient=share)


def with_broken(draw: Draw, count: int) -> Draw:
    """The same fleets, in which so many nodes are broken that are not in the rack that is cut off."""

    def broken(rng: random.Random) -> Fleet:
        fleet = draw(rng)
        well = [node for node, rack in enumerate(fleet.racks) if rack != fleet.cut_off]
        return replace(fleet, failing=dict.fromkeys(rng.sample(well, count), 1.0))

    return broken


def noisy(size: int, *, transient: float = 0.0, lost: float = 0.0) -> Draw:
    return lambda rng: Fleet(size, transient=transient, lost=lost)


def slow_network(size: int, factor: float, count: int = 1) -> Draw:
    return lambda rng: Fleet(size, slow_network=dict.fromkeys(rng.sample(range(size), count), factor))


def _racks(size: int, rack_size: int) -> tuple[int, ...]:
    return tuple(node // rack_size for node in range(size))
