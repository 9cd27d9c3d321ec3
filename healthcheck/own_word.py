"""What a node itself says, or does not: it gave no answer, or its own probe was ended by a signal.

No partner is needed for that, only another try: answers get lost, and a probe is killed by accident. So each
is weighed as failed tests are (`healthcheck.odds`), against how often it befalls nodes that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from math import log

from healthcheck.fleet import NodeName
from healthcheck.measurements import GroupResult, RoundResult
from healthcheck.odds import log_odds
from healthcheck.settings import Rules

Listed = Callable[[GroupResult], Collection[NodeName]]


def is_of_most(round_: RoundResult, listed: Listed, withdrawn: Collection[NodeName] = ()) -> bool:
    """Whether it befell most of those asked: likelier that it is not theirs than that all of them broke."""
    asked = [name for group in round_.groups for name in group.members if name not in withdrawn]
    hit = [name for group in round_.groups for name in listed(group) if name not in withdrawn]
    return 2 * len(hit) > len(asked)


def befell(
    rounds: Sequence[RoundResult], listed: Listed, withdrawn: Collection[NodeName]
) -> dict[NodeName, list[int]]:
    """Return the rounds in which it befell each node, but for rounds in which it befell most."""
    found: dict[NodeName, list[int]] = {}
    for round_ in rounds:
        if not is_of_most(round_, listed, withdrawn):
            for name in (name for group in round_.groups for name in listed(group)):
                if name not in withdrawn:
                    found.setdefault(name, []).append(round_.number)
    return found


def proven(
    found: dict[NodeName, list[int]], rounds: Sequence[RoundResult], nodes: int, rules: Rules
) -> frozenset[NodeName]:
    """The nodes that it befell more often than bad luck would have it."""
    asked = Counter(name for round_ in rounds for group in round_.groups for name in group.members)
    there = {name: len(hits) for name, hits in found.items() if len(hits) < asked[name]}
    failed = sum(there.values())
    passed = asked.total() - sum(len(hits) for hits in found.values())
    needed = log(rules.odds_a_node * max(nodes, rules.least_nodes))
    return frozenset(
        name
        for name, hits in found.items()
        if log_odds(len(hits), fine := asked[name] - len(hits), failed - there.get(name, 0), passed - fine)
        >= needed
    )
