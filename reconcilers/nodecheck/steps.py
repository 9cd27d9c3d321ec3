"""The results of a check so far: of its current step, and of all finished steps for the diagnosis.

They follow from the NodeCheck's status and the agents' reports alone, so that a restarted controller comes to
the same conclusions. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from crds.actions import worst
from crds.agent_report import PairOutcome, ProbeEnding, ProbeOutcome
from crds.elasticworker import ElasticWorker
from crds.findings import DROPPED, Cause
from crds.nodecheck import CheckGroup, CheckRound, FailedTest, NodeCheck, NodeCheckStatus
from healthcheck.diagnosis import SILENT, proven, rounds_by_node
from healthcheck.local import local_result
from healthcheck.measurements import (
    COMPARED_IN_PAIRS,
    CheckHistory,
    GroupResult,
    LocalResult,
    Metric,
    RoundResult,
    is_plausible,
    rounded,
)
from healthcheck.settings import Settings
from reconcilers.nodecheck.nodes import (
    MAX_MESSAGE,
    TOO_LATE,
    CheckedNode,
    Out,
    absence_of,
    checked_nodes_of,
    departure_of,
    out_of,
)

UNTESTABLE = (ProbeEnding.UNAVAILABLE, ProbeEnding.SKIPPED)
"""Endings of a pair test that did not run."""

UNTESTED = "ProbeUnavailable"
"""Reason of a node that could not run its test."""

OWN_SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
"""Signals that no partner causes; with SIGABRT, torch ends itself for a partner's failure."""

NOT_KEPT = "the reason was not kept"
"""Message of a failed local test whose result did not fit into the status."""

MAX_GROUP_MESSAGE = 200
MAX_GROUP_MESSAGES = 50
"""Limit for a round: thousands of groups may fail at once, and every agent watches the object."""


@dataclass(frozen=True)
class StepResult:
    """The result of a finished step."""

    withdrawn: Mapping[str, Out]
    """Nodes that withdrew since the step before, with the reasons."""
    unanswered: Mapping[str, str]
    """Nodes that were lost before they answered the local tests, with their Pods' ends."""
    round: RoundResult | None = None
    """Result of the round; None for the local tests."""

    @property
    def everybody_answered(self) -> bool:
        silent = self.round is not None and any(group.silent for group in self.round.groups)
        return not (self.withdrawn or self.unanswered or silent)


def ended_gathering(
    status: NodeCheckStatus, participants: Sequence[CheckedNode], *, overdue: bool
) -> StepResult | None:
    """The nodes that are out, once all other agents are ready or the time is over; None to wait.

    A worker that the cache lacks was created just now.
    """
    settled = settled_nodes(status)
    missing = [p for p in participants if p.node not in settled and not p.is_ready]
    if not overdue and any(p.worker is None or out_of(p) is None for p in missing):
        return None
    absent = {participant.node: absence_of(participant) for participant in missing}
    return StepResult(
        withdrawn={node: out for node, out in absent.items() if not out.lost},
        unanswered={node: out.message for node, out in absent.items() if out.lost},
    )


def ended_step(
    status: NodeCheckStatus, participants: Sequence[CheckedNode], *, overdue: bool
) -> StepResult | None:
    """The result of the current step; None while there is a node to wait for.

    Args:
        overdue: whether the time for the step is over, so that no further answer is expected.
    """
    settled = settled_nodes(status)
    present = [participant for participant in participants if participant.node not in settled]
    if not status.round:
        return _ended_local(present, overdue=overdue)
    silent = {status.nodes[place] for done in status.rounds for place in done.silent}
    ended = _ended_round(status.round, status.groups, present, silent, overdue=overdue)
    if ended is None or silent.isdisjoint(ended.withdrawn):
        return ended
    faulty = _faulty_by_silence(status)  # these nodes stay faulty, even if their Pods end
    return replace(ended, withdrawn={n: out for n, out in ended.withdrawn.items() if n not in faulty})


def _faulty_by_silence(status: NodeCheckStatus) -> frozenset[str]:
    rounds = rounds_of(status)
    silences = rounds_by_node(rounds, SILENT, {*status.nodes_in(Cause.WITHDRAWN)})
    return proven(silences, rounds, len(status.nodes), Settings().own_report)


def nodes_without_worker(check: NodeCheck, workers: Sequence[ElasticWorker]) -> list[tuple[int, str]]:
    """Nodes without a worker that have yet to be tested, each with its place in the check."""
    made = {p.node for p in checked_nodes_of(check, workers) if p.worker is not None}
    needless = made | settled_nodes(check.status)
    return [(index, node) for index, node in enumerate(check.status.nodes) if node not in needless]


def settled_nodes(status: NodeCheckStatus) -> frozenset[str]:
    """Nodes of an unfinished check that need no further answer: withdrawn, or settled by local tests."""
    return frozenset(node for cause in (Cause.WITHDRAWN, *DROPPED) for node in status.nodes_in(cause))


def _ended_local(present: Sequence[CheckedNode], *, overdue: bool) -> StepResult | None:
    """The result of the local tests. A late answer is no fault of the node, since agents and reports get
    lost; a lost node is recognized by its Pod."""
    withdrawn: dict[str, Out] = {}
    unanswered: dict[str, str] = {}
    for participant in present:
        out = departure_of(participant)
        answered = participant.reused or bool(participant.local)
        if out is not None and (not out.lost or participant.reused):
            withdrawn[participant.node] = out
        elif out is not None:
            unanswered[participant.node] = out.message
        elif not answered and not overdue:
            return None
        elif not answered:
            withdrawn[participant.node] = Out("it gave no result of its local tests in time", reason=TOO_LATE)
        elif untested := _untested(participant.local):
            withdrawn[participant.node] = Out(untested, reason=UNTESTED)
    return StepResult(withdrawn, unanswered)


def _ended_round(
    number: int,
    groups: Sequence[CheckGroup],
    present: Sequence[CheckedNode],
    silent_before: Collection[str],
    *,
    overdue: bool,
) -> StepResult | None:
    """The result of a round of tests with others; None while an answer is awaited."""
    by_node = {participant.node: participant for participant in present}
    members = [by_node[node] for group in groups for node in group.members if node in by_node]
    answers = {member.node: answer for member in members if (answer := member.pair(number)) is not None}
    if not overdue and any(m.node not in answers and departure_of(m) is None for m in members):
        return None
    withdrawn = {
        node: Out(f"{answer.probe}: {answer.reason}"[:MAX_MESSAGE], reason=UNTESTED)
        for node, answer in answers.items()
        if answer.ending in UNTESTABLE
    }
    tested = {node: answer for node, answer in answers.items() if node not in withdrawn}
    outcomes = [_outcome(group.members, tested) for group in groups]
    silent = {node for outcome in outcomes for node in outcome.silent}
    for node, participant in by_node.items():
        out = departure_of(participant)
        if out is not None and not (out.lost and (node in silent or node in silent_before)):
            withdrawn.setdefault(node, out)
    return StepResult(withdrawn, {}, RoundResult(number, tuple(outcomes)))


def _outcome(members: Sequence[str], tested: Mapping[str, PairOutcome]) -> GroupResult:
    answers = {node: tested[node] for node in members if node in tested}
    failed = {node: answer for node, answer in answers.items() if answer.ending is not ProbeEnding.PASSED}
    message = "; ".join(f"{node}: {answer.reason or answer.ending.value}" for node, answer in failed.items())
    passed = len(answers) == len(members) and not failed
    return GroupResult(
        members=tuple(members),
        passed=passed,
        failure=message[:MAX_GROUP_MESSAGE],
        silent=tuple(node for node in members if node not in answers),
        crashed=tuple(node for node, answer in failed.items() if _was_killed(answer)),
        action=worst(answer.action for answer in failed.values()) if len(members) == 1 else None,
        measured=_slowest(answers.values(), _compared(members)) if passed else {},
    )


def _was_killed(answer: PairOutcome) -> bool:
    """Whether the node's own probe died of a signal that no partner sends."""
    return answer.ending is ProbeEnding.CRASHED and answer.signal in OWN_SIGNALS


def _compared(members: Sequence[str]) -> Iterable[Metric]:
    """The metrics of a group's members; a group of one repeats the local measurements."""
    return COMPARED_IN_PAIRS if len(members) > 1 else Metric


def _slowest(answers: Collection[PairOutcome], metrics: Iterable[Metric]) -> dict[Metric, float]:
    """The group's figures, which every member reports; the worst counts if they differ."""
    figures: dict[Metric, float] = {}
    for metric in metrics:
        reported = (answer.figures[metric] for answer in answers if metric in answer.figures)
        values = [value for value in reported if is_plausible(value)]
        if values:
            figures[metric] = rounded(min(values) if metric.higher_is_better else max(values))
    return figures


def _untested(outcomes: Iterable[ProbeOutcome]) -> str:
    """The reason why a node could not be tested fully, if its other tests have passed; else empty."""
    outcomes = list(outcomes)
    missing = [outcome for outcome in outcomes if outcome.ending is ProbeEnding.UNAVAILABLE]
    if not missing or not local_result(outcomes).passed:
        return ""
    return "; ".join(dict.fromkeys(outcome.reason for outcome in missing))[:MAX_MESSAGE]


def history_of(status: NodeCheckStatus, participants: Sequence[CheckedNode]) -> CheckHistory:
    """All finished steps, as the diagnosis needs them."""
    by_node = {participant.node: participant for participant in participants}
    lost = {found.node: found.message for found in status.node_results}
    left = {each.node: each.message for each in status.withdrawn}
    return CheckHistory(
        local=_local_results(status, participants),
        rounds=tuple(_with_own_figures(round_, by_node) for round_ in rounds_of(status)),
        unanswered={node: lost.get(node, "") for node in status.nodes_in(Cause.NO_ANSWER)},
        withdrawn={node: left.get(node, "") for node in status.nodes_in(Cause.WITHDRAWN)},
    )


def _with_own_figures(round_: RoundResult, by_node: Mapping[str, CheckedNode]) -> RoundResult:
    """Add the figures of groups of one, which like those of local tests are only in the agents' reports."""
    groups = list(round_.groups)
    for place, group in enumerate(groups):
        alone = by_node.get(group.members[0]) if len(group.members) == 1 and group.passed else None
        answer = alone.pair(round_.number) if alone is not None else None
        if answer is not None:
            groups[place] = replace(group, measured=_slowest([answer], Metric))
    return replace(round_, groups=tuple(groups))


def _local_results(status: NodeCheckStatus, participants: Iterable[CheckedNode]) -> dict[str, LocalResult]:
    results = {
        participant.node: local_result(participant.local)
        for participant in participants
        if participant.local and not participant.reused
    }
    kept = {found.node: found for found in status.node_results}
    for node in set(status.nodes_in(Cause.LOCAL_TEST)) - results.keys():  # their reports went with their Pods
        found = kept.get(node)
        message, action = (found.message, found.action) if found is not None else ("", None)
        results[node] = LocalResult(failure=message or NOT_KEPT, action=action)
    return results


def round_to_record(result: RoundResult, nodes: Sequence[str]) -> CheckRound:
    """The record of a round in the status: nodes by their places, and the tests that failed."""
    places = {node: place for place, node in enumerate(nodes)}
    failed = {number: group for number, group in enumerate(result.groups) if not group.passed}
    reasons = [
        FailedTest(test=number, message=group.failure, action=group.action)
        for number, group in failed.items()
        if group.failure
    ]
    return CheckRound(
        number=result.number,
        tests=[[places[node] for node in group.members] for group in result.groups],
        failed=list(failed),
        silent=sorted(places[node] for group in failed.values() for node in group.silent),
        crashed=sorted(places[node] for group in failed.values() for node in group.crashed),
        reasons=reasons[:MAX_GROUP_MESSAGES],
        bus_gbps=_column(result, Metric.PAIR_BUS_GBPS),
        latency_us=_column(result, Metric.PAIR_LATENCY_US),
    )


def rounds_of(status: NodeCheckStatus) -> tuple[RoundResult, ...]:
    """The finished rounds, as the diagnosis needs them."""
    return tuple(_round_result(done, status.nodes) for done in status.rounds)


def _round_result(done: CheckRound, nodes: Sequence[str]) -> RoundResult:
    failed, silent, crashed = {*done.failed}, {*done.silent}, {*done.crashed}
    reasons = {test.test: test for test in done.reasons}
    columns = [(Metric.PAIR_BUS_GBPS, done.bus_gbps), (Metric.PAIR_LATENCY_US, done.latency_us)]
    groups = []
    for number, members in enumerate(done.tests):
        reason = reasons.get(number)
        groups.append(
            GroupResult(
                members=tuple(nodes[place] for place in members),
                passed=number not in failed,
                failure=reason.message if reason else "",
                action=reason.action if reason else None,
                silent=tuple(nodes[place] for place in members if place in silent),
                crashed=tuple(nodes[place] for place in members if place in crashed),
                measured={m: figures[number] for m, figures in columns if figures and figures[number]},
            )
        )
    return RoundResult(done.number, tuple(groups))


def _column(result: RoundResult, metric: Metric) -> list[float]:
    figures = [group.measured.get(metric, 0.0) for group in result.groups]
    return figures if any(figures) else []
