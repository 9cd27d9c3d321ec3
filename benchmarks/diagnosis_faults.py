"""Faults of simulated fleets, and draws of such fleets, for diagnosis.py."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations


@dataclass(frozen=True)
class Fleet:
    """Nodes with their faults. Nodes are numbered from 0 by rank."""

    size: int
    failing: Mapping[int, float] = field(default_factory=dict)
    """Probability that a test with a node fails, by node."""
    bad_links: Mapping[frozenset[int], float] = field(default_factory=dict)
    liars: frozenset[int] = frozenset()
    """Nodes whose bad links are their own fault: they always fail with some of their partners."""
    slow_compute: Mapping[int, float] = field(default_factory=dict)
    """Factor by which a node's matrix products take longer, by node."""
    slow_network: Mapping[int, float] = field(default_factory=dict)
    racks: tuple[int, ...] = ()
    """Rack of each node; empty for one network without parts."""
    labelled: bool = True
    """Whether the nodes' labels name their racks."""
    cut_off: int | None = None
    """Rack whose nodes reach only each other."""
    flaky_border: int | None = None
    """Rack across whose border half of the tests fail."""
    transient: float = 0.0
    """Probability that a test fails at random."""
    lost: float = 0.0
    """Probability that a node's answer in a round is late or lost."""
    vouched: frozenset[int] = frozenset()
    """Nodes that recently passed an earlier check."""

    @property
    def faulty_nodes(self) -> frozenset[int]:
        return frozenset((*self.failing, *self.slow_compute, *self.slow_network, *self.liars))

    @property
    def faulty_links(self) -> frozenset[frozenset[int]]:
        """Return the links that are faulty themselves, and not because of a node."""
        return frozenset(pair for pair in self.bad_links if pair.isdisjoint(self.liars))

    @property
    def faulty_racks(self) -> frozenset[int]:
        """Racks that are cut off, intermittently or always, or whose nodes all fail."""
        dead = {r for r in set(self.racks) if all(n in self.failing for n in self.in_rack(r))}
        return frozenset(dead | {rack for rack in (self.cut_off, self.flaky_border) if rack is not None})

    def in_rack(self, rack: int) -> frozenset[int]:
        return frozenset(node for node, its in enumerate(self.racks) if its == rack)

    def test_passes(self, members: Sequence[int], rng: random.Random) -> bool:
        """Run one test, which every faulty part in the group may fail."""
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
    """All nodes that recently passed have since broken."""

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
    """One rack that reaches no other; with half of the nodes in it, one half.

    Args:
        size: number of nodes.
        rack_size: size of every rack; the last one may be smaller, and is not cut off.
        labelled: whether labels name the racks.
        shuffled: whether ranks are independent of racks.
    """

    def draw(rng: random.Random) -> Fleet:
        racks = _racks(size, rack_size)
        rack = rng.randrange(size // rack_size)
        if shuffled:
            racks = tuple(rng.sample(racks, size))
        return Fleet(size, racks=racks, labelled=labelled, cut_off=rack)

    return draw


def in_racks(draw: Draw, rack_size: int) -> Draw:
    """The same fleets, in labelled racks."""

    def with_racks(rng: random.Random) -> Fleet:
        fleet = draw(rng)
        return replace(fleet, racks=_racks(fleet.size, rack_size))

    return with_racks


def flaky_border(size: int, rack_size: int) -> Draw:
    """One labelled rack fails half of the tests across its border, and is healthy inside."""
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
    """One node that always fails with some of the others, and never with the rest."""

    def draw(rng: random.Random) -> Fleet:
        node, *others = rng.sample(range(size), partners + 1)
        pairs = [frozenset((node, other)) for other in others]
        return Fleet(size, bad_links=dict.fromkeys(pairs, 1.0), liars=frozenset((node,)))

    return draw


def with_accidents(draw: Draw, share: float) -> Draw:
    """The same fleets, with a share of tests failing at random."""
    return lambda rng: replace(draw(rng), transient=share)


def with_broken(draw: Draw, count: int) -> Draw:
    """The same fleets, with broken nodes outside the rack that is cut off."""

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
