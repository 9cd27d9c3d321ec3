"""Results as trials: the nodes that met, the round, and whether the symptom showed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from healthcheck.fleet import Link, Node, NodeName
from healthcheck.measurements import RoundResult
from healthcheck.settings import Settings
from healthcheck.stragglers import PairSpeeds, Slowness


class Symptom(StrEnum):
    """Symptom of a group. Each is judged separately: a failure does not count for speed."""

    FAILED = "failed"
    SLOW = "slow"


@dataclass(frozen=True)
class Trial:
    """Test of one group, with respect to one symptom."""

    round: int
    members: tuple[NodeName, ...]
    passed: bool
    reason: str = ""

    def others(self, name: NodeName) -> tuple[NodeName, ...]:
        return tuple(member for member in self.members if member != name)


class Ledger:
    """Trials of one symptom, by node."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self.trials = tuple(trials)
        by_node: dict[NodeName, list[Trial]] = defaultdict(list)
        for trial in self.trials:
            for member in trial.members:
                by_node[member].append(trial)
        self._by_node = dict(by_node)
        self._passes = Counter(member for trial in self.trials if trial.passed for member in trial.members)

    def of(self, name: NodeName) -> Sequence[Trial]:
        """Return the node's trials, in the order of rounds."""
        return self._by_node.get(name, ())

    def passes(self, name: NodeName, without: Collection[NodeName] = (), after: int = 0) -> int:
        """Return how often the node passed, in groups with none of `without`, in rounds after `after`."""
        if not without and not after:
            return self._passes[name]
        return sum(
            trial.passed and trial.round > after and not any(other in without for other in trial.others(name))
            for trial in self.of(name)
        )

    def failures(self, name: NodeName) -> list[Trial]:
        return [trial for trial in self.of(name) if not trial.passed]

    def met(self, name: NodeName, other: NodeName, *, passed_only: bool = False) -> int:
        """Return how often the two met, without failed larger groups, where another member may be the
        cause."""
        return sum(
            other in trial.members and (trial.passed or (len(trial.members) == 2 and not passed_only))
            for trial in self.of(name)
        )

    def of_pair(self, pair: Link) -> list[Trial]:
        """Return the trials of exactly these two nodes."""
        return [trial for trial in self.of(min(pair)) if frozenset(trial.members) == pair]

    def failed_again(self, failures: Iterable[Trial]) -> list[int]:
        """Return the number of further failures of each failed pair that never passed, if there are any."""
        pairs = [self.of_pair(frozenset(trial.members)) for trial in failures if len(trial.members) == 2]
        return [len(trials) - 1 for trials in pairs if len(trials) > 1 and not any(t.passed for t in trials)]


def failing_trials(rounds: Iterable[RoundResult]) -> Ledger:
    """Return trials of groups by whether they failed. Groups with a silent or crashed member do not count."""
    return Ledger(
        Trial(round_.number, group.members, group.passed, group.failure)
        for round_ in rounds
        for group in round_.groups
        if not group.silent and not group.crashed and len(group.members) > 1
    )


def slow_trials(rounds: Sequence[RoundResult], nodes: Sequence[Node], settings: Settings) -> Ledger:
    """Return trials of groups by whether they were slow. Failed groups do not count; groups without figures
    were not slow."""
    speeds = PairSpeeds(rounds, nodes, settings)
    trials = []
    for round_ in rounds:
        for group in (g for g in round_.groups if g.passed and len(g.members) > 1):
            slow = speeds.judge(group)
            trials.append(Trial(round_.number, group.members, not slow, _reason(slow)))
    return Ledger(trials)


def _reason(slow: Sequence[Slowness]) -> str:
    return "; ".join(str(slowness) for slowness in slow)
