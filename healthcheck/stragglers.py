"""Slow, compared with one's own kind: median and MAD per metric and hardware class, with an absolute floor.

MAD: the median absolute deviation, which half of the values may distort without harm; 1.4826 · MAD estimates
the standard deviation of normal values (Rousseeuw and Croux, 1993). Compute and network are separate metrics,
so that neither hides the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import COMPARED_IN_PAIRS, GroupResult, LocalResult, Metric, RoundResult
from healthcheck.settings import Settings

MAD_TO_STANDARD_DEVIATION = 1.4826


@dataclass(frozen=True)
class Slowness:
    """One value that is too slow, and what it was compared with."""

    metric: Metric
    value: float
    reference: float
    """The median of its kind, or the minimum set for it."""

    def __str__(self) -> str:
        share = self.value / self.reference if self.metric.higher_is_better else self.reference / self.value
        return f"{self.metric} {self.value:.4g}, {share:.0%} of the speed of {self.reference:.4g}"


@dataclass(frozen=True)
class Peers:
    """One node's best value each, of one metric and hardware class."""

    metric: Metric
    hardware_class: str
    values: Mapping[NodeName, float]

    def judge(self, value: float, members: Collection[NodeName], settings: Settings) -> Slowness | None:
        """Whether `value`, measured by `members`, is slow beside the others.

        Too few values for a spread are compared without the members' own, so that one of two can be slow.
        """
        minimum = settings.minimums.get((self.hardware_class, self.metric))
        if minimum is not None and self._speed(value) < self._speed(minimum):
            return Slowness(self.metric, value, minimum)
        few = len(self.values) < settings.smallest_fleet_with_spread
        typical = self._typical_without(members) if few else self._typical
        if typical is None:
            return None
        slowdown = self._slowdown(value, typical)
        if 1 - 1 / slowdown <= settings.floor(self.metric):
            return None
        if slowdown >= (settings.small_fleet_ratio if few else settings.straggler_ratio):
            return Slowness(self.metric, value, typical)
        if not few and abs(value - typical) > settings.deviations * self._standard_deviation:
            return Slowness(self.metric, value, typical)
        return None

    @cached_property
    def _typical(self) -> float:
        return median(self.values.values())

    @cached_property
    def _standard_deviation(self) -> float:
        return MAD_TO_STANDARD_DEVIATION * median(abs(best - self._typical) for best in self.values.values())

    def _typical_without(self, members: Collection[NodeName]) -> float | None:
        return median(others) if (others := [v for n, v in self.values.items() if n not in members]) else None

    def _slowdown(self, value: float, typical: float) -> float:
        """How many times slower than `typical`; below 1 is faster."""
        speed = self._speed(value)
        return self._speed(typical) / speed if speed > 0 else float("inf")

    def _speed(self, value: float) -> float:
        if self.metric.higher_is_better:
            return value
        return 1 / value if value > 0 else float("inf")


def slow_nodes(
    local: Mapping[NodeName, LocalResult], nodes: Sequence[Node], settings: Settings
) -> dict[NodeName, tuple[Slowness, ...]]:
    """The nodes whose own figures are slow, with every figure that is."""
    slow: dict[NodeName, list[Slowness]] = defaultdict(list)
    for peers in _local_peers(local, nodes):
        for name, value in peers.values.items():
            found = peers.judge(value, (name,), settings)
            if found:
                slow[name].append(found)
    return {name: tuple(found) for name, found in slow.items()}


class PairSpeeds:
    """Judges the speed of groups by the best that each node showed in any group.

    A healthy node that shared its first group with a slow one shows its own speed as soon as it meets
    another, so a few slow nodes do not move the median, however often they are re-tested.
    """

    def __init__(self, rounds: Iterable[RoundResult], nodes: Sequence[Node], settings: Settings) -> None:
        self._settings = settings
        self._nodes = {node.name: node for node in nodes}
        bests: dict[tuple[Metric, str, bool], dict[NodeName, float]] = defaultdict(dict)
        for group in (group for round_ in rounds for group in round_.groups if group.passed):
            for metric in (metric for metric in COMPARED_IN_PAIRS if metric in group.measured):
                self._enter(bests, group, metric)
        self._peers = {key: Peers(key[0], key[1], values) for key, values in bests.items()}

    def judge(self, group: GroupResult) -> tuple[Slowness, ...]:
        """What is slow about this group. A mixed group is held to its slowest class."""
        slow = []
        for metric in (metric for metric in COMPARED_IN_PAIRS if metric in group.measured):
            verdicts = [
                self._peers[metric, class_, self._crosses(group)].judge(
                    group.measured[metric], group.members, self._settings
                )
                for class_ in sorted({node.hardware_class for node in self._members(group)})
            ]
            found = [verdict for verdict in verdicts if verdict]
            if found and len(found) == len(verdicts):
                slow.append(found[0])
        return tuple(slow)

    def _enter(
        self, bests: dict[tuple[Metric, str, bool], dict[NodeName, float]], group: GroupResult, metric: Metric
    ) -> None:
        better = max if metric.higher_is_better else min
        value = group.measured[metric]
        for node in self._members(group):
            values = bests[metric, node.hardware_class, self._crosses(group)]
            values[node.name] = better(values.get(node.name, value), value)

    def _members(self, group: GroupResult) -> list[Node]:
        return [self._nodes[name] for name in group.members if name in self._nodes]

    def _crosses(self, group: GroupResult) -> bool:
        """Whether it spans racks: many a network is slower there, and nothing is wrong with it."""
        return len({node.smallest_domain for node in self._members(group)}) > 1


def _local_peers(local: Mapping[NodeName, LocalResult], nodes: Sequence[Node]) -> list[Peers]:
    values: dict[tuple[Metric, str], dict[NodeName, float]] = defaultdict(dict)
    for node in nodes:
        result = local.get(node.name)
        for metric, value in result.measured.items() if result and result.passed else ():
            values[metric, node.hardware_class][node.name] = value
    return [Peers(metric, class_, found) for (metric, class_), found in values.items()]
