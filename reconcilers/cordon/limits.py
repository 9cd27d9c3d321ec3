"""How many nodes may be out of service at once, of all and of each pool, and whose turn it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ALL_NODES = "all nodes"
"""Stands for the limit of the whole cluster among the names of pools."""


@dataclass(frozen=True)
class Limits:
    """How many nodes may be cordoned by us at once."""

    whole: int
    pools: Mapping[str, int] = field(default_factory=dict)
    """Limits by pool; for a pool that is missing, only the limit of the whole holds."""

    def of(self, pool: str) -> int:
        return self.pools.get(pool, self.whole)


def limit_of(nodes: int, percent: int) -> int:
    """Returns how many of so many nodes may be cordoned; at least one."""
    return max(1, nodes * percent // 100)


def held_back(full: str | None) -> str:
    """State why a node is not cordoned for which the limit leaves no room.

    Args:
        full: the pool whose limit it is; None or ALL_NODES for the whole.
    """
    of = ALL_NODES if full in (None, ALL_NODES) else f"the nodes with {full}"
    return f"not cordoned: of {of}, as many are as --cordon-limit allows"


def pools_of(labels: Mapping[str, str], rules: Iterable[str]) -> frozenset[str]:
    """The pools that a node with these labels is in, such as `nvidia.com/gpu.product=H100`.

    Args:
        labels: the node's.
        rules: labels or selectors (`CordonOptions.pools`).
    """
    found = set()
    for rule in rules:
        if "=" not in rule:
            found |= {f"{rule}={labels[rule]}"} if rule in labels else set()
        elif all(labels.get(key) == value for key, value in selector_of(rule).items()):
            found.add(rule)
    return frozenset(found)


def selector_of(rule: str) -> dict[str, str]:
    """Labels of `a=b,c=d`.

    Raises ValueError for anything else.
    """
    labels = {}
    for part in rule.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key or any(sign in key + value for sign in "=!() "):
            raise ValueError(
                f"a pool is a label, or labels with values such as team=a,tier=gpu; not {rule!r}"
            )
        labels[key] = value
    return labels


class Room:
    """What the limits leave, of the whole and of each pool."""

    def __init__(self, limits: Limits, cordoned: Iterable[frozenset[str]]) -> None:
        """`cordoned`: the pools of each node that is."""
        self._limits = limits
        self._taken: Counter[str] = Counter()
        for pools in cordoned:
            self._take(pools)

    def take(self, pools: frozenset[str]) -> str | None:
        """Take a place for a node in these pools; or the name of the one that has none left."""
        full = next((pool for pool in _in_order(pools) if self._taken[pool] >= self._limit(pool)), None)
        if full is None:
            self._take(pools)
        return full

    def _take(self, pools: frozenset[str]) -> None:
        self._taken.update((ALL_NODES, *pools))

    def _limit(self, pool: str) -> int:
        return self._limits.whole if pool == ALL_NODES else self._limits.of(pool)


def _in_order(pools: frozenset[str]) -> Sequence[str]:
    return (ALL_NODES, *sorted(pools))
