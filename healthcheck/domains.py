"""Racks and switches in which failures cluster more than chance explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import exp, lgamma

from crds.findings import MAX_EVIDENCE, FaultyDomain
from healthcheck.attribution import Attribution
from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.parts import Cut

LEAST_NODES = 2
"""Minimum number of faulty nodes for a cluster."""
PARTITION = "partition"
"""Level of a part without a common label, which is named after its first node."""


def clustered(
    nodes: Sequence[Node], faulty: Collection[NodeName], significance: float
) -> tuple[FaultyDomain, ...]:
    """Return domains with at least half of their nodes faulty, and more than chance explains.

    Chance is the hypergeometric tail, times the number of domains (Bonferroni).
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
            found.append(_domain(domain, bad, text))
    return tuple(found)


def cut_off(nodes: Sequence[Node], found: Attribution) -> tuple[FaultyDomain, ...]:
    """Return the parts of the network that are cut off, by their common label, or else by their first node.

    Parts with the same label are merged, because few of their nodes have met.
    """
    parts: dict[Domain, list[Cut]] = defaultdict(list)
    for cut in found.cuts.proven:
        parts[_common_domain(nodes, cut) or Domain(PARTITION, cut.nodes[0])].append(cut)
    return tuple(_named(nodes, domain, cuts) for domain, cuts in parts.items())


def _named(nodes: Sequence[Node], domain: Domain, cuts: Sequence[Cut]) -> FaultyDomain:
    """Return the domain with the evidence across the cuts."""
    members = {name for cut in cuts for name in cut.nodes}
    inside = tuple(node.name for node in nodes if node.name in members)
    crossing = {trial for cut in cuts for trial in cut.crossing if not members.issuperset(trial.members)}
    across = {name for trial in crossing for name in trial.members} - members
    text = (
        f"its nodes pass with each other, and all {len(crossing)} tests of {len(inside)} of them with "
        f"{len(across)} nodes elsewhere failed: look at the network between, not at the nodes"
    )
    return _domain(domain, inside, text)


def _domain(domain: Domain, nodes: Sequence[NodeName], text: str) -> FaultyDomain:
    return FaultyDomain(level=domain.level, name=domain.name, nodes=list(nodes), message=text[:MAX_EVIDENCE])


def _common_domain(nodes: Sequence[Node], cut: Cut) -> Domain | None:
    """Return the smallest domain that contains all of its nodes."""
    members = set(cut.nodes)
    first, *others = (node for node in nodes if node.name in members)
    shared = set(first.domains).intersection(*(node.domains for node in others))
    return next((domain for domain in first.domains if domain in shared), None)


def _members(nodes: Sequence[Node]) -> dict[Domain, list[NodeName]]:
    members: dict[Domain, list[NodeName]] = defaultdict(list)
    for node in nodes:
        for domain in node.domains:
            members[domain].append(node.name)
    return members


def _tail(nodes: int, faulty: int, in_domain: int, faulty_in_domain: int) -> float:
    """Return P(at least `faulty_in_domain` of the faulty nodes lie in a domain of `in_domain`), drawn at
    random."""
    elsewhere, all_ways = nodes - in_domain, _log_comb(nodes, faulty)
    return sum(
        exp(_log_comb(in_domain, hits) + _log_comb(elsewhere, faulty - hits) - all_ways)
        for hits in range(max(faulty_in_domain, faulty - elsewhere), min(in_domain, faulty) + 1)
    )


def _log_comb(items: int, chosen: int) -> float:
    """Return the logarithm of `comb`, whose integers take quadratic time for thousands of nodes."""
    return lgamma(items + 1) - lgamma(chosen + 1) - lgamma(items - chosen + 1)
