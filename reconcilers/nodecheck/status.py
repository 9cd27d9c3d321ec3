"""What a NodeCheck's status says at each step of the check. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.wording import counted
from crds.model import Condition, ConditionStatus
from crds.nodecheck import (
    Action,
    CheckGroup,
    FaultyDomain,
    FaultyLink,
    NodeCheck,
    NodeCheckPhase,
    NodeCheckStatus,
    NodeResult,
    NodeVerdict,
    Withdrawal,
)
from healthcheck.diagnosis import Cause, Verdicts
from healthcheck.measurements import History
from healthcheck.plan import Round
from healthcheck.stragglers import ClassFinding
from reconcilers.nodecheck.nodes import CheckedNode, Out
from reconcilers.nodecheck.record import MAX_NAMED_IN_DOMAIN
from reconcilers.nodecheck.scope import CheckRefusal, Scope
from reconcilers.nodecheck.size import MAX_DETAILED
from reconcilers.nodecheck.steps import Ended, round_to_record, rounded
from reconcilers.nodecheck.told import Summary, first_names, round_begun
from reconcilers.observed.conditions import with_condition

RUNNING, SUCCEEDED, FAILED, HEALTHY = "Running", "Succeeded", "Failed", "Healthy"
ACCELERATORS_TESTED = "AcceleratorsTested"
NODES_TESTED = "NodesTested"
NODES_ALIKE = "NodesAlike"

MAX_TEXT = 1_024
MAX_REASON = 64
WORST_FIRST = (NodeVerdict.FAULTY, NodeVerdict.STRAGGLER, NodeVerdict.INCONCLUSIVE, NodeVerdict.HEALTHY)
MAX_EVIDENCE = 300
"""Of a link or rack."""
MAX_PLACES = 100
REPLACED = Out("its Node was deleted during the check, and is another one now", reason="NodeReplaced")


def waiting(status: NodeCheckStatus, reason: str, message: str, now: datetime) -> NodeCheckStatus:
    """Not begun yet, and why."""
    conditions = with_condition(status.conditions, RUNNING, ConditionStatus.FALSE, reason, message, now)
    phase = status.phase or NodeCheckPhase.PENDING
    return status.model_copy(update={"phase": phase, "conditions": conditions})


def refused(status: NodeCheckStatus, refusal: CheckRefusal, now: datetime) -> NodeCheckStatus:
    """The check cannot be carried out."""
    conditions = list(status.conditions)
    for type_, value in ((RUNNING, ConditionStatus.FALSE), (FAILED, ConditionStatus.TRUE)):
        conditions = with_condition(conditions, type_, value, refusal.reason, refusal.message, now)
    return status.model_copy(
        update={
            "phase": NodeCheckPhase.FAILED,
            "conditions": conditions,
            "groups": [],
            "completion_time": now,
        }
    )


def scoped(
    status: NodeCheckStatus, scope: Scope, withdrawn: Mapping[str, Out], now: datetime
) -> NodeCheckStatus:
    """Fixes who takes part."""
    return status.model_copy(
        update={
            "phase": NodeCheckPhase.PENDING,
            "nodes": list(scope.nodes),
            "workers": [participant.worker for participant in scope.participants],
            "incarnations": [participant.incarnation for participant in scope.participants],
            "reused": list(scope.reused),
            "withdrawn": _withdrawals(withdrawn),
            "start_time": now,
        }
    )


def with_untested_accelerators(status: NodeCheckStatus, message: str, now: datetime) -> NodeCheckStatus:
    conditions = with_condition(
        status.conditions, ACCELERATORS_TESTED, ConditionStatus.FALSE, "NoProbe", message, now
    )
    return status.model_copy(update={"conditions": conditions})


def with_classes(status: NodeCheckStatus, classes: Sequence[ClassFinding], now: datetime) -> NodeCheckStatus:
    """Adds what is wrong with whole classes of hardware, if anything is: it speaks against no node."""
    if not classes:
        return status
    message = "; ".join(_kind_told(found) for found in classes)[:MAX_TEXT]
    conditions = with_condition(
        status.conditions, NODES_ALIKE, ConditionStatus.FALSE, "SpeedsDiffer", message, now
    )
    return status.model_copy(update={"conditions": conditions})


def _kind_told(found: ClassFinding) -> str:
    return f"{found.evidence} ({first_names(found.nodes)})"


def started(status: NodeCheckStatus, now: datetime) -> NodeCheckStatus:
    """The local tests begin."""
    message = "the nodes run their local tests"
    conditions = with_condition(status.conditions, RUNNING, ConditionStatus.TRUE, "LocalTests", message, now)
    return status.model_copy(update={"phase": NodeCheckPhase.RUNNING, "conditions": conditions, "round": 0})


def settled(status: NodeCheckStatus, ended: Ended, now: datetime) -> NodeCheckStatus:
    """Adds what a step gave: a finished round, and who withdrew."""
    rounds = status.rounds
    if ended.round is not None:
        rounds = [*rounds, round_to_record(ended.round, status.nodes)]
    withdrawn = [*status.withdrawn, *_withdrawals(ended.withdrawn)]
    return status.model_copy(
        update={
            "rounds": rounds,
            "withdrawn": withdrawn,
            "conditions": _with_untested_nodes(status, withdrawn, now),
            "node_results": [
                *status.node_results,
                *(_dropped(node, Cause.NO_ANSWER, message) for node, message in ended.unanswered.items()),
            ],
        }
    )


def with_local_failures(status: NodeCheckStatus, history: History) -> NodeCheckStatus:
    """Adds the nodes that failed their own tests, so that it is kept even if their Pods go."""
    known = {result.node for result in status.node_results}
    failures = [
        _dropped(node, Cause.LOCAL_TEST, result.reason)
        for node, result in history.local.items()
        if not result.passed and node not in known
    ]
    return status.model_copy(update={"node_results": [*status.node_results, *failures]})


def in_round(
    status: NodeCheckStatus, step: Round, participants: Iterable[CheckedNode], now: datetime
) -> NodeCheckStatus:
    """The next round is to be carried out."""
    by_node = {participant.node: participant for participant in participants}
    message = round_begun(step)
    conditions = with_condition(status.conditions, RUNNING, ConditionStatus.TRUE, "PairTests", message, now)
    return status.model_copy(
        update={
            "conditions": conditions,
            "round": step.number,
            "groups": [_group(members, by_node[members[0]]) for members in step.groups],
        }
    )


def concluded(
    status: NodeCheckStatus, results: Sequence[NodeResult], summary: Summary, now: datetime
) -> NodeCheckStatus:
    """The verdicts are there, and the check is over."""
    conditions = list(status.conditions)
    for type_, value, reason in (
        (RUNNING, ConditionStatus.FALSE, "Finished"),
        (SUCCEEDED, ConditionStatus.TRUE, "Finished"),
        (HEALTHY, summary.healthy, summary.reason),
    ):
        conditions = with_condition(conditions, type_, value, reason, summary.message, now)
    return status.model_copy(
        update={
            "phase": NodeCheckPhase.SUCCEEDED,
            "conditions": conditions,
            "groups": [],
            "node_results": _detailed(results),
            "faulty_nodes": _named(results, NodeVerdict.FAULTY),
            "stragglers": _named(results, NodeVerdict.STRAGGLER),
            "inconclusive": _named(results, NodeVerdict.INCONCLUSIVE),
            "completion_time": now,
        }
    )


def seconds_to_expiry(check: NodeCheck, now: datetime) -> float | None:
    """Until a finished check is to be deleted; None if it is to stay."""
    ttl, completed = check.spec.ttl_seconds_after_finished, check.status.completion_time
    return None if ttl is None or completed is None else ttl - (now - completed).total_seconds()


def with_places(status: NodeCheckStatus, verdicts: Verdicts) -> NodeCheckStatus:
    """Adds the links and racks that the verdicts name: the first ones, where there are many."""
    links = []
    for link in verdicts.links[:MAX_PLACES]:
        a, b = sorted(link.link)
        told = link.evidence[:MAX_EVIDENCE]
        action = Action.LOOK_AT_LINK
        links.append(FaultyLink(a=a, b=b, symptom=link.symptom.value, message=told, action=action))
    domains = [
        FaultyDomain(
            level=found.domain.level,
            name=found.domain.name,
            nodes=list(found.nodes[:MAX_NAMED_IN_DOMAIN]),
            message=found.evidence[:MAX_EVIDENCE],
        )
        for found in verdicts.domains[:MAX_PLACES]
    ]
    return status.model_copy(update={"faulty_links": links, "faulty_domains": domains})


def node_results(verdicts: Verdicts, history: History) -> list[NodeResult]:
    """The verdicts on all nodes."""
    results = []
    for found in verdicts.nodes:
        local = history.local.get(found.node)
        measured = local.measured if local is not None else {}
        results.append(
            NodeResult(
                node=found.node,
                verdict=NodeVerdict(found.verdict.value),
                causes=[cause.value for cause in found.causes],
                message=found.evidence[:MAX_TEXT],
                figures={metric.value: rounded(value) for metric, value in measured.items()},
            )
        )
    return results


def without_replaced(
    status: NodeCheckStatus,
    results: Sequence[NodeResult],
    nodes: Mapping[str, Mapping[str, Any]],
    now: datetime,
) -> tuple[NodeCheckStatus, list[NodeResult]]:
    """What was found out about a machine says nothing of another, which has taken over its name meanwhile.

    Args:
        status: of a check that ends now.
        results: its verdicts.
        nodes: the raw Nodes that are there by now, by name.
        now: the time of the verdicts.
    """
    replaced = {name for name, raw in nodes.items() if _was_added_since(raw, status.start_time or now)}
    known = {left.node for left in status.withdrawn}
    status = settled(status, Ended(dict.fromkeys(sorted(replaced - known), REPLACED), {}), now)
    verdict = {
        "verdict": NodeVerdict.INCONCLUSIVE,
        "causes": [Cause.WITHDRAWN.value],
        "message": REPLACED.message,
    }
    return status, [
        result.model_copy(update=verdict) if result.node in replaced else result for result in results
    ]


def _was_added_since(node: Mapping[str, Any], began: datetime) -> bool:
    return datetime.fromisoformat(node["metadata"]["creationTimestamp"]) > began


def _detailed(results: Sequence[NodeResult]) -> list[NodeResult]:
    """Returns the results that are kept, in rank order: of many, the worst."""
    by_need = sorted(range(len(results)), key=lambda at: WORST_FIRST.index(results[at].verdict))
    return [results[at] for at in sorted(by_need[:MAX_DETAILED])]


def _named(results: Iterable[NodeResult], verdict: NodeVerdict) -> list[str]:
    return [result.node for result in results if result.verdict is verdict]


def _withdrawals(withdrawn: Mapping[str, Out]) -> list[Withdrawal]:
    return [
        Withdrawal(node=node, message=out.message[:MAX_TEXT], reason=out.reason[:MAX_REASON])
        for node, out in withdrawn.items()
    ]


def _with_untested_nodes(
    status: NodeCheckStatus, withdrawn: Sequence[Withdrawal], now: datetime
) -> list[Condition]:
    """That some nodes could not be tested, and the commonest reason: the check's trouble, not the nodes'."""
    conditions = list(status.conditions)
    if not withdrawn:
        return conditions
    ((reason, _),) = Counter(left.reason or "NotTested" for left in withdrawn).most_common(1)
    named = [left.node for left in withdrawn if (left.reason or "NotTested") == reason]
    first = next(left.message for left in withdrawn if left.node == named[0])
    of_all = f"{len(withdrawn)} of {counted(len(status.nodes), 'node')}"
    message = f"{of_all} could not be tested, for no fault of theirs; {reason}: {first_names(named)}: {first}"
    return with_condition(conditions, NODES_TESTED, ConditionStatus.FALSE, reason, message, now)


def _dropped(node: str, cause: Cause, message: str) -> NodeResult:
    """A node that drops out at the local tests. The last word on it comes with the other verdicts."""
    verdict = NodeVerdict.FAULTY if cause is Cause.LOCAL_TEST else NodeVerdict.INCONCLUSIVE
    return NodeResult(node=node, verdict=verdict, causes=[cause.value], message=message[:MAX_TEXT])


def _group(members: Sequence[str], first: CheckedNode) -> CheckGroup:
    report = first.report
    assert report is not None, "a node whose agent never reported takes part in no round"
    return CheckGroup(members=list(members), master_address=report.address, master_port=report.store_port)
