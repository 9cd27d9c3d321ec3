"""Slow nodes and groups, compared within one class of hardware, each figure separately.

The limits come from the first measurements of all nodes, and stay fixed. One check in a hundred of healthy
nodes suspects any node, over all nodes and figures. A suspect repeats its measurements, alone, and is slow
only if each of them is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from statistics import median

from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import (
    COMPARED_IN_PAIRS,
    CheckHistory,
    GroupResult,
    Metric,
    RoundResult,
    is_plausible,
)
from healthcheck.outliers import LEAST_VALUES, belonging
from healthcheck.settings import Settings

Values = Mapping[NodeName, float]


@dataclass(frozen=True)
class Slowness:
    """Value that is too slow."""

    metric: Metric
    value: float
    reference: float
    """Typical value of its kind."""

    def __str__(self) -> str:
        share = 1 / slowdown(self.metric, self.value, self.reference)
        return f"{self.metric} {self.value:.4g}, {share:.0%} of the speed of {self.reference:.4g}"


@dataclass(frozen=True)
class ClassFinding:
    """Finding about a class of hardware as a whole. It blames no node."""

    hardware_class: str
    nodes: tuple[NodeName, ...]
    evidence: str
    """Evidence, in one sentence for a person."""


@dataclass(frozen=True)
class Standard:
    """Limit of slowness for one metric and class. It is fixed during a check."""

    metric: Metric
    typical: float
    limit: float
    """Slowdown, relative to `typical`, from which a value is suspicious."""
    kinds: tuple[tuple[float, float], ...] = ()
    """Ranges of slowdowns that several nodes share: another kind of hardware under the same label."""

    def suspicion(self, value: float) -> Slowness | None:
        return self._beyond(value, self.limit)

    def confirmation(self, value: float, settings: Settings) -> Slowness | None:
        """Return the slowness of a suspect's repeated value, which may be a third closer to the typical
        one."""
        limit = 1 / (1 - settings.confirming_share * (1 - 1 / self.limit))
        return self._beyond(value, max(limit, _floor(self.metric, settings)))

    def _beyond(self, value: float, limit: float) -> Slowness | None:
        times = slowdown(self.metric, value, self.typical)
        if times < limit or any(fastest <= times <= slowest for fastest, slowest in self.kinds):
            return None
        return Slowness(self.metric, value, self.typical)


Standards = Mapping[tuple[Metric, str], Standard]
"""Standards by metric and class."""


def slowdown(metric: Metric, value: float, typical: float) -> float:
    """Return how many times slower than `typical` a value is; below 1 is faster. A measured time of 0 is
    never slow."""
    slow, fast = (typical, value) if metric.higher_is_better else (value, typical)
    if slow <= 0:
        return 0.0
    return slow / fast if fast > 0 else (inf if metric.higher_is_better else 1.0)


@dataclass(frozen=True)
class OwnFigures:
    """Judgement of the nodes' own figures, each compared within its kind."""

    slow: Mapping[NodeName, tuple[Slowness, ...]]
    """Nodes that were slow in each measurement, with all slow figures."""
    to_measure_again: tuple[NodeName, ...]
    """Suspects with too few repeated measurements, in rank order."""
    classes: tuple[ClassFinding, ...]
    """Classes of two kinds, and classes that are slower than in earlier checks."""


def own_figures(history: CheckHistory, nodes: Sequence[Node], settings: Settings) -> OwnFigures:
    values, again = _local_values(history, nodes), _measured_again(history)
    standards = _standards(values, settings)
    suspects = _suspects(history, nodes, standards, again, settings)
    confirmed = {name for name in suspects if len(again.get(name, ())) >= settings.remeasurements}
    return OwnFigures(
        slow={
            name: tuple(slowness for _, slowness in standing)
            for name, standing in suspects.items()
            if name in confirmed
        },
        to_measure_again=tuple(name for name in suspects if name not in confirmed),
        classes=tuple(_class_findings(values, standards, settings)),
    )


def references_of(
    history: CheckHistory, nodes: Sequence[Node], settings: Settings
) -> dict[tuple[str, Metric], float]:
    """Return the typical values of each class in this check, for later ones as `Settings.references`.

    Classes with too few nodes, and those that are slow as a whole, have none.
    """
    return {
        (class_, metric): median(values.values())
        for (metric, class_), values in _local_values(history, nodes).items()
        if len(values) >= LEAST_VALUES and not _slow_as_a_whole(class_, metric, values, settings)
    }


class PairSpeeds:
    """Judges the speed of groups by the first round of their kind, in which all nodes take part.

    Later rounds include only suspects and their partners.
    """

    def __init__(self, rounds: Iterable[RoundResult], nodes: Sequence[Node], settings: Settings) -> None:
        self._nodes = {node.name: node for node in nodes}
        first: dict[tuple[Metric, str, bool], list[float]] = {}
        for round_ in rounds:
            found: dict[tuple[Metric, str, bool], list[float]] = defaultdict(list)
            for group in (group for group in round_.groups if group.passed and len(group.members) > 1):
                for metric, class_, value in self._figures(group):
                    found[metric, class_, self._crosses(group)].append(value)
            first = {**found, **first}
        total = sum(map(len, first.values()))
        self._standards = {
            (metric, class_, crossing): _standard(metric, class_, values, len(values) // 2, total, settings)
            for (metric, class_, crossing), values in first.items()
        }

    def judge(self, group: GroupResult) -> tuple[Slowness, ...]:
        """Return the slow figures of this group. A mixed group is compared with its slowest class."""
        verdicts: dict[Metric, list[Slowness | None]] = defaultdict(list)
        for metric, class_, value in self._figures(group):
            standard = self._standards.get((metric, class_, self._crosses(group)))
            verdicts[metric].append(standard.suspicion(value) if standard else None)
        return tuple(found[0] for found in verdicts.values() if found[0] and all(found))

    def _figures(self, group: GroupResult) -> list[tuple[Metric, str, float]]:
        classes = sorted({node.hardware_class for node in self._members(group)})
        return [
            (metric, class_, group.measured[metric])
            for metric in COMPARED_IN_PAIRS
            if is_plausible(group.measured.get(metric, inf))
            for class_ in classes
        ]

    def _members(self, group: GroupResult) -> list[Node]:
        return [self._nodes[name] for name in group.members if name in self._nodes]

    def _crosses(self, group: GroupResult) -> bool:
        """Return whether the group spans racks, where many healthy networks are slower."""
        return len({node.smallest_domain for node in self._members(group)}) > 1


def _suspects(
    history: CheckHistory,
    nodes: Sequence[Node],
    standards: Standards,
    again: Mapping[NodeName, Sequence[Mapping[Metric, float]]],
    settings: Settings,
) -> dict[NodeName, list[tuple[Standard, Slowness]]]:
    """Return nodes with suspicious figures that every repeated measurement confirmed."""
    classes = {node.name: node.hardware_class for node in nodes}
    suspects: dict[NodeName, list[tuple[Standard, Slowness]]] = {}
    for name, class_ in classes.items():
        result = history.local.get(name)
        measured = result.measured if result and result.passed else {}
        own = settings.of_class(class_)
        standing = [
            (standard, slowness)
            for metric, value in measured.items()
            if is_plausible(value) and (standard := standards.get((metric, class_)))
            if (slowness := standard.suspicion(value))
            and all(_confirms(standard, figures, own) for figures in again.get(name, ()))
        ]
        if standing:
            suspects[name] = standing
    return suspects


def _confirms(standard: Standard, figures: Mapping[Metric, float], settings: Settings) -> bool:
    value = figures.get(standard.metric)
    return value is not None and is_plausible(value) and standard.confirmation(value, settings) is not None


def _measured_again(history: CheckHistory) -> dict[NodeName, list[Mapping[Metric, float]]]:
    """Return the repeated measurements of nodes in groups of one; without figures if they failed."""
    again: dict[NodeName, list[Mapping[Metric, float]]] = defaultdict(list)
    for round_ in history.rounds:
        for group in (group for group in round_.groups if len(group.members) == 1):
            again[group.members[0]].append(group.measured)
    return again


def _local_values(
    history: CheckHistory, nodes: Sequence[Node]
) -> dict[tuple[Metric, str], dict[NodeName, float]]:
    values: dict[tuple[Metric, str], dict[NodeName, float]] = defaultdict(dict)
    for node in nodes:
        result = history.local.get(node.name)
        for metric, value in result.measured.items() if result and result.passed else ():
            if is_plausible(value):
                values[metric, node.hardware_class][node.name] = value
    return values


def _standards(found: Mapping[tuple[Metric, str], Values], settings: Settings) -> Standards:
    total = sum(map(len, found.values()))
    return {
        (metric, class_): _standard(
            metric, class_, list(values.values()), (len(values) - 1) // 2, total, settings
        )
        for (metric, class_), values in found.items()
    }


def _standard(
    metric: Metric, class_: str, values: Sequence[float], most: int, total: int, settings: Settings
) -> Standard:
    """Return the standard from the spread of the values of one metric and class.

    Args:
        most: maximum number of slow values; half of the groups, if each may have a slow node.
        total: number of values of all figures.
    """
    if len(values) < LEAST_VALUES:
        return _small_standard(metric, class_, values, settings)
    settings = settings.of_class(class_)
    sign = 1 if metric.higher_is_better else -1
    chance = settings.false_straggler_chance * len(values) / total
    well = belonging([sign * value for value in values], chance, most)
    typical = sign * well.typical
    by_spread = slowdown(metric, sign * well.lowest, typical)
    if sign * well.lowest <= 0:  # the spread exceeds the speeds themselves
        by_spread = inf
    limit = max(min(by_spread, settings.straggler_ratio), _floor(metric, settings))
    kinds = _kinds([slowdown(metric, value, typical) for value in values], limit, settings)
    return Standard(metric, typical, limit, kinds)


def _small_standard(metric: Metric, class_: str, values: Sequence[float], settings: Settings) -> Standard:
    """Return the standard for few values: the faster half is typical, or, for a single node, the reference of
    earlier checks."""
    reference = settings.references.get((class_, metric))
    if len(values) == 1 and reference is not None:
        values = [reference]
    ordered = sorted(values, reverse=metric.higher_is_better)
    typical, own = median(ordered[: ceil(len(ordered) / 2)]), settings.of_class(class_)
    return Standard(metric, typical, max(own.small_fleet_ratio, _floor(metric, own)))


def _floor(metric: Metric, settings: Settings) -> float:
    return 1 / (1 - settings.floor(metric))


def _kinds(slowdowns: Sequence[float], limit: float, settings: Settings) -> tuple[tuple[float, float], ...]:
    """Return bands of slowdowns, below the limit of any spread, that several nodes share closely."""
    slow = sorted(times for times in slowdowns if limit <= times < settings.straggler_ratio)
    least = max(settings.least_of_a_kind, ceil(settings.least_share_of_a_kind * len(slowdowns)))
    gap = limit - 1
    bands: list[list[float]] = [slow[:1]]
    for before, times in pairwise(slow):
        if times - before <= gap:
            bands[-1].append(times)
        else:
            bands.append([times])
    return tuple((band[0] - gap / 2, band[-1] + gap / 2) for band in bands if len(band) >= least)


def _class_findings(
    found: Mapping[tuple[Metric, str], Values], standards: Standards, settings: Settings
) -> Iterator[ClassFinding]:
    for (metric, class_), values in found.items():
        yield from _kind_findings(class_, standards[metric, class_], values)
        yield from _slow_as_a_whole(class_, metric, values, settings)


def _kind_findings(class_: str, standard: Standard, values: Values) -> list[ClassFinding]:
    found = []
    for fastest, slowest in standard.kinds:
        kind = {
            name: value
            for name, value in values.items()
            if fastest <= slowdown(standard.metric, value, standard.typical) <= slowest
        }
        evidence = (
            f"{len(kind)} of the {len(values)} nodes{_of(class_)} do {median(kind.values()):.4g} in "
            f"{standard.metric} and the others {standard.typical:.4g}: they look like another generation, or "
            "share a setting, and none is called slow for it"
        )
        found.append(ClassFinding(class_, tuple(kind), evidence))
    return found


def _slow_as_a_whole(class_: str, metric: Metric, values: Values, settings: Settings) -> list[ClassFinding]:
    reference = settings.references.get((class_, metric))
    if reference is None or len(values) < 2:
        return []
    typical = median(values.values())
    times = slowdown(metric, typical, reference)
    if times < settings.of_class(class_).small_fleet_ratio:
        return []
    evidence = (
        f"the {len(values)} nodes{_of(class_)} together are at {1 / times:.0%} of their earlier speed in "
        f"{metric}, {typical:.4g} beside {reference:.4g}: "
        "look at what they share (power, cooling, driver, image)"
    )
    return [ClassFinding(class_, tuple(values), evidence)]


def _of(class_: str) -> str:
    return f" of class {class_}" if class_ else ""
