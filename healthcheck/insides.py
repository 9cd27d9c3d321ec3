"""NVLink domains whose nodes fail only with each other: the switch between them is faulty.

Screening pairs cross domains, so they do not test a switch within one. Two further rounds test the nodes
of each NVLink domain with each other, in a ring. If all of these tests fail, and each node passes with
others elsewhere, no node is to blame, and no other test explains it.

Fewer than four nodes have too few pairs for that: accidents could be mistaken for a fault. So the pairs of
three nodes meet twice. Two nodes meet until they are a faulty link (`healthcheck.attribution`); if they
never passed, the switch is faulty, because nothing else connects them. If one of them also fails
elsewhere, it is to blame itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest

from crds.findings import MAX_EVIDENCE, FaultyDomain
from crds.names import NVLINK_LABELS
from healthcheck.fleet import Domain, Link, Node, NodeName
from healthcheck.measurements import RoundResult
from healthcheck.pairing import Group, circle
from healthcheck.trials import Ledger, Trial

LEAST_IN_RING = 4
"""Minimum nodes of a ring with enough tests (`LEAST_FAILURES`)."""
LEAST_FAILURES = 3
ROUNDS = 2
"""Rounds of a tournament that form a ring of the nodes."""


@dataclass(frozen=True)
class BrokenSwitch:
    """NVLink domain within which all tests failed."""

    domain: Domain
    nodes: tuple[NodeName, ...]
    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        return (
            f"all {len(self.trials)} tests of {len(self.nodes)} nodes of {self.domain} with each other "
            "failed, and each passed with nodes elsewhere: look at the domain's switch, not at its nodes"
        )

    @property
    def finding(self) -> FaultyDomain:
        """Result of the check about the domain."""
        text = str(self)[:MAX_EVIDENCE]
        return FaultyDomain(
            level=self.domain.level, name=self.domain.name, nodes=list(self.nodes), message=text
        )


def inside_groups(
    nodes: Sequence[Node], rounds: Sequence[RoundResult], out: Collection[NodeName]
) -> tuple[Group, ...]:
    """Return the groups of the next round within NVLink domains; none if all have met, or there is one
    domain.

    Args:
        out: nodes that are not tested further.
    """
    results: defaultdict[Link, list[bool]] = defaultdict(list)
    for group in chain.from_iterable(round_.groups for round_ in rounds):
        results[frozenset(group.members)].append(group.passed)
    domains = [[name for name in names if name not in out] for names in _nvlink_domains(nodes).values()]
    due = zip_longest(*(_rounds(names, results) for names in domains), fillvalue=())
    return next((groups for each in due if (groups := tuple(chain.from_iterable(each)))), ())


def broken_switches(
    ledger: Ledger, nodes: Sequence[Node], condemned: Collection[NodeName]
) -> tuple[BrokenSwitch, ...]:
    """Return the domains whose nodes fail only with each other.

    Args:
        condemned: nodes found faulty by other evidence, whose failures do not count.
    """
    found = []
    for domain, names in _nvlink_domains(nodes).items():
        inside = _inside(ledger, frozenset(names), condemned)
        members = tuple(name for name in names if any(name in trial.members for trial in inside))
        distinct = {frozenset(trial.members) for trial in inside}
        least = LEAST_FAILURES if len(members) >= LEAST_IN_RING else 2 * LEAST_FAILURES
        if any(trial.passed for trial in inside) or len(distinct) < LEAST_FAILURES or len(inside) < least:
            continue
        if all(_passes_outside(ledger, name, names) for name in members):
            found.append(BrokenSwitch(domain, members, tuple(inside)))
    return tuple(found)


def broken_between(
    links: Mapping[Link, tuple[Trial, ...]], nodes: Sequence[Node]
) -> tuple[BrokenSwitch, ...]:
    """Return the domains of two nodes that never pass with each other.

    Args:
        links: faulty links, with all trials of each.
    """
    found = []
    for domain, names in _nvlink_domains(nodes).items():
        trials = links.get(frozenset(names), ())
        if trials and not any(trial.passed for trial in trials):
            found.append(BrokenSwitch(domain, tuple(names), trials))
    return tuple(found)


def without_inside(ledger: Ledger, switches: Sequence[BrokenSwitch]) -> Ledger:
    """Return the ledger without the trials that broken switches explain."""
    explained = {trial for switch in switches for trial in switch.trials}
    return Ledger(trial for trial in ledger.trials if trial not in explained) if explained else ledger


def _nvlink_domains(nodes: Sequence[Node]) -> Mapping[Domain, list[NodeName]]:
    """Return NVLink domains other than the whole fleet, with their nodes in rank order."""
    found: defaultdict[Domain, list[NodeName]] = defaultdict(list)
    for node in nodes:
        domain = next((each for each in node.domains if each.level in NVLINK_LABELS), None)
        if domain is not None:
            found[domain].append(node.name)
    return {domain: names for domain, names in found.items() if 1 < len(names) < len(nodes)}


def _rounds(names: Sequence[NodeName], results: Mapping[Link, Sequence[bool]]) -> list[Sequence[Group]]:
    """Return the due rounds within a domain: a ring, or the pairs of three nodes, twice if none of them
    passed.

    Args:
        results: whether each group passed, in each of its tests.
    """
    if len(names) != 3:
        ring = (circle(names, rotation) for rotation in range(ROUNDS))
        return [[group for group in groups if frozenset(group) not in results] for groups in ring]
    pairs = {pair: results.get(frozenset(pair), ()) for pair in combinations(names, 2)}
    times = 1 if any(map(any, pairs.values())) else 2
    return [
        [pair] for pair, found in sorted(pairs.items(), key=lambda each: len(each[1])) if len(found) < times
    ]


def _inside(ledger: Ledger, names: frozenset[NodeName], condemned: Collection[NodeName]) -> list[Trial]:
    trials = {trial: None for name in names for trial in ledger.of(name) if names.issuperset(trial.members)}
    return [trial for trial in trials if not any(member in condemned for member in trial.members)]


def _passes_outside(ledger: Ledger, name: NodeName, names: Collection[NodeName]) -> bool:
    return bool(ledger.passes(name, without=[other for other in names if other != name]))
