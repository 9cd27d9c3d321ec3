"""Simulated probes: a check is played from its first round to its verdicts in one line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from crds.findings import Finding, Verdict
from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Node
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, RoundResult
from healthcheck.plan import ProbeRound, next_step
from healthcheck.settings import Settings

Group = tuple[str, ...]
Probe = Callable[[int, Group], GroupResult]
"""What a group's test gives in a round."""


@dataclass(frozen=True)
class Played:
    rounds: tuple[RoundResult, ...]
    verdicts: Diagnosis

    def of(self, name: str) -> Finding:
        return next(found for found in self.verdicts.nodes if found.node == name)

    def named(self, verdict: Verdict) -> set[str]:
        return set(self.verdicts.named(verdict))

    @property
    def faulty(self) -> set[str]:
        return self.named(Verdict.FAULTY)

    @property
    def groups(self) -> list[list[Group]]:
        return [[group.members for group in round_.groups] for round_ in self.rounds]


def play(
    nodes: Sequence[Node],
    probe: Probe,
    settings: Settings | None = None,
    local: Mapping[str, LocalResult] | None = None,
    again: Probe | None = None,
    **absent: Mapping[str, str],
) -> Played:
    """`again`: how it goes when a node measures itself again; by default as it went first."""
    settings, local = settings or Settings(), local or {}
    again = again or measuring(local)
    rounds: tuple[RoundResult, ...] = ()
    while isinstance(step := next_step(CheckHistory(local, rounds, **absent), nodes, settings), ProbeRound):
        assert step.number == len(rounds) + 1
        groups = ((again if len(group) == 1 else probe)(step.number, group) for group in step.groups)
        rounds += (RoundResult(step.number, tuple(groups)),)
    return Played(rounds, step)


def measuring(local: Mapping[str, LocalResult]) -> Probe:
    return lambda _, group: GroupResult(group, True, measured=local[group[0]].measured)


def fleet(size: int, **fields: object) -> list[Node]:
    return [Node(str(i), **fields) for i in range(1, size + 1)]  # type: ignore[arg-type]


def names(*numbers: int) -> set[str]:
    return {str(number) for number in numbers}


def hard(bad: Collection[str], links: Collection[Collection[str]] = ()) -> Probe:
    """Whatever includes a bad node or a bad link fails, always."""

    def probe(round_: int, group: Group) -> GroupResult:
        failed = any(n in bad for n in group) or any(set(link) <= set(group) for link in links)
        return GroupResult(group, not failed, "connection lost" if failed else "")

    return probe


def cut(inside: Collection[str], bad: Collection[str] = ()) -> Probe:
    """Whatever crosses the border of a part fails, always, and so does what includes a bad node."""

    def probe(round_: int, group: Group) -> GroupResult:
        crosses = len({name in inside for name in group}) > 1
        return GroupResult(group, not crosses and not any(name in bad for name in group))

    return probe


def scripted(failures: Mapping[int, Collection[Collection[str]]]) -> Probe:
    """Fails what is listed by round, and passes the rest."""

    def probe(round_: int, group: Group) -> GroupResult:
        failed = any(set(group) == set(listed) for listed in failures.get(round_, ()))
        return GroupResult(group, not failed)

    return probe
