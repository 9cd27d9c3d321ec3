"""Racks and switches: failures that lie together there, more than chance would put them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb

from healthcheck.attribution import Attribution
from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.trials import Ledger

LEAST_NODES = 2
"""One node is not a cluster."""


@dataclass(frozen=True)
class FaultyDomain:
    """A domain to look at before its nodes."""

    domain: Domain
    nodes: tuple[NodeName, ...]
    evidence: str


def clustered(
    nodes: Sequence[Node], faulty: Collection[NodeName], significance: float
) -> tuple[FaultyDomain, ...]:
    """Domains with half of their nodes faulty or more, and with more than chance would put there.

    Chance: the hypergeometric tail, times the number of domains looked at (Bonferroni).
    """
    members = _members(nodes)
    found = []
    for domain, names in members.items():
        bad = tuple(name for name in names if name in faulty)
        if len(bad) < LEAST_NODES or 2 * len(bad) < len(names) or len(names) == len(nodes):
            continue
        chance = _tail(len(nodes), len(faulty), len(names), len(bad)) * len(members)
        if chance < significance:
            text = (
                f"{len(bad)} of its {len(names)} nodes are faulty, and {len(faulty) - len(bad)} of the "
                f"{len(nodes) - len(names)} elsewhere"
            )
            found.append(FaultyDomain(domain, bad, text))
    return tuple(found)


def cut_off(nodes: Sequence[Node], ledger: Ledger, found: Attribution) -> tuple[FaultyDomain, ...]:
    """Smallest domains whose nodes pass among themselves, and whose every test with others failed."""
    domain_of = {node.name: node.smallest_domain for node in nodes}
    result = []
    for domain in sorted({d for name in found.cut_off if (d := domain_of[name])}, key=str):
        crossing = [
            trial
            for trial in ledger.trials
            if len({domain_of.get(name) == domain for name in trial.members}) == 2
            and not any(name in found.guilty for name in trial.members)
        ]
        tested = {name for trial in crossing for name in trial.members}
        inside = tuple(n.name for n in nodes if n.name in tested and n.smallest_domain == domain)
        outside = tested.difference(inside)
        if any(t.passed for t in crossing) or min(len(inside), len(outside)) < LEAST_NODES:
            continue
        text = (
            f"its nodes pass with each other, and all {len(crossing)} tests of {', '.join(inside)} with "
            f"{len(outside)} nodes elsewhere failed"
        )
        result.append(FaultyDomain(domain, inside, text))
    return tuple(result)


def _members(nodes: Sequence[Node]) -> dict[Domain, list[NodeName]]:
    members: dict[Domain, list[NodeName]] = defaultdict(list)
    for node in nodes:
        for domain in node.domains:
            members[domain].append(node.name)
    return members


def _tail(nodes: int, faulty: int, in_domain: int, faulty_in_domain: int) -> float:
    """P(at least `faulty_in_domain` of the faulty nodes lie in a domain of `in_domain`), drawn at random."""
    ways = sum(
        comb(in_domain, hits) * comb(nodes - in_domain, faulty - hits)
        for hits in range(faulty_in_domain, min(in_domain, faulty) + 1)
    )
    return ways / comb(nodes, faulty)
