"""Nodes of a fleet: free, in use or out of service; repairs and cordons.

The controller's limit of cordons applies (`reconcilers/observed/options.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from reconcilers.observed.options import limit_of
from simulator.account import RunOutcome
from simulator.bag import Bag
from simulator.fleet import Fleet


def name_of(node: int) -> str:
    return f"node-{node}"


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


@dataclass
class Nodes:
    fleet: Fleet
    rng: random.Random
    outcome: RunOutcome
    good: Bag = field(default_factory=Bag)
    """All nodes of the fleet except the bad ones."""
    bad: Bag = field(default_factory=Bag)
    free: Bag = field(default_factory=Bag)
    """Nodes on which a Pod may be placed."""
    ill: set[int] = field(default_factory=set)
    """Nodes in use whose fault has shown and is not repaired."""
    cordoned: set[int] = field(default_factory=set)
    count: int = 0
    """Number of nodes created so far."""
    in_order: bool = False
    """Whether Pods are placed on the first free node instead of a random one."""

    @classmethod
    def of(cls, fleet: Fleet, rng: random.Random, outcome: RunOutcome) -> Nodes:
        nodes = cls(fleet, rng, outcome)
        nodes.add(fleet.nodes + fleet.spares)
        return nodes

    def add(self, count: int) -> None:
        """Add free nodes."""
        share = self.fleet.faults.bad_nodes.share
        bad = set(self.rng.sample(range(count), int(count * share)))
        for place in range(count):
            node = self.count + place
            (self.bad if place in bad else self.good).add(node)
            self.free.add(node)
        self.count += count

    def __len__(self) -> int:
        return len(self.good) + len(self.bad)

    def weight(self) -> float:
        """Return the number of good nodes with the same total failure rate."""
        return len(self.good) + len(self.bad) * self.fleet.faults.bad_nodes.times

    def pick_to_fail(self) -> int:
        """Return a random node, weighted by failure rate."""
        good = len(self.good)
        if self.rng.random() * self.weight() < good:
            return self.good.pick(self.rng)
        return self.bad.pick(self.rng)

    def take_free(self, forbidden: set[int], avoided: set[int]) -> int | None:
        """Return a node for a Pod, preferably not one to avoid; None if there is none."""
        if self.in_order and self.free:
            first = next(iter(self.free))
            self.free.discard(first)
            return first

        for refused in (forbidden | avoided, forbidden):
            if len(self.free) <= len(refused):
                candidates = sorted(set(self.free) - refused)
                if not candidates:
                    continue
                node = self.rng.choice(candidates)
            else:
                node = self.free.pick(self.rng)
                while node in refused:
                    node = self.free.pick(self.rng)
            self.free.discard(node)
            return node
        return None

    def may_cordon(self, node: int) -> bool:
        """Return whether the controller cordons a faulty node, and count it."""
        policies = self.fleet.policies
        if not policies.cordon:
            return False
        has_room = len(self.cordoned) < limit_of(len(self), policies.cordon_limit_percent)
        if has_room:
            self.cordoned.add(node)
            self.outcome.cordons += 1
        else:
            self.outcome.cordons_held += 1
        return has_room

    def repaired(self, node: int) -> None:
        """Free a repaired node; `repair_seconds` has drawn whether a bad one is fixed."""
        self.ill.discard(node)
        self.cordoned.discard(node)
        self.release(node)

    def release(self, node: int) -> None:
        """Free a node, if it still belongs to the fleet."""
        if node in self.good or node in self.bad:
            self.free.add(node)

    def forget(self, node: int) -> None:
        """Remove a node from the fleet."""
        for bag in (self.good, self.bad, self.free):
            bag.discard(node)

    def turns_bad(self, node: int) -> None:
        """Mark a node as bad because its fault is not repaired."""
        self.ill.discard(node)
        if node in self.good:
            self.good.discard(node)
            self.bad.add(node)

    def repair_seconds(self, node: int) -> float:
        """Return the duration of a repair, and draw whether it fixes a bad node."""
        repair, rng = self.fleet.repair, self.rng
        self.outcome.repairs += 1
        seconds, fails = exponential(rng, repair.automated_seconds), repair.automated_fails
        if rng.random() < repair.goes_to_manual:
            seconds += exponential(rng, repair.manual_seconds)
            fails = repair.manual_fails
        if rng.random() >= fails and node in self.bad:
            self.bad.discard(node)
            self.good.add(node)
        return seconds

    def screened(self) -> list[int]:
        """Return bad nodes that a check finds before the first training, as far as free ones can replace
        them."""
        found = [n for n in self.bad if self.rng.random() < self.fleet.diagnosis.intermittent_found]
        spare = len(self.free) - self.fleet.nodes - self.fleet.policies.standby
        found = found[: max(spare, 0)]
        for node in found:
            self.free.discard(node)
        return found


def exponential(rng: random.Random, mean: float) -> float:
    return rng.expovariate(1 / mean) if mean else 0.0
