"""The status of a NodeCheck at each step: its fields, conditions and sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from controller.wording import counted, some_of
from crds.findings import (
    DROPPED,
    MAX_TEXT,
    UNHEALTHY,
    WORST_FIRST,
    Cause,
    FaultyDomain,
    FaultyLink,
    Finding,
    Verdict,
    dropped,
)
from crds.model import ConditionStatus
from crds.nodecheck import MOST_NAMED, CheckGroup, NodeCheck, NodeCheckPhase, NodeCheckStatus, Withdrawal
from healthcheck.diagnosis import Diagnosis
from healthcheck.measurements import CheckHistory
from healthcheck.plan import ProbeRound
from healthcheck.stragglers import ClassFinding
from reconcilers.findings.machine import created_at
from reconcilers.findings.record import MAX_NAMED_IN_DOMAIN
from reconcilers.nodecheck.nodes import CheckedNode, Out
from reconcilers.nodecheck.scope import CheckRefusal, Scope
from reconcilers.nodecheck.steps import StepResult, round_to_record
from reconcilers.observed.conditions import ConditionState, with_condition

RUNNING, SUCCEEDED, FAILED, HEALTHY = "Running", "Succeeded", "Failed", "Healthy"
ACCELERATORS_TESTED = "AcceleratorsTested"
NODES_TESTED = "NodesTested"
NODES_ALIKE = "NodesAlike"

MAX_REASON = 64
MAX_PLACES = 100
"""Limit of links, and of domains, in the status."""
MAX_NAMED = 10
"""Limit of names in a sentence."""
NOWHERE = ("", 1)
"""Address of a group without a live agent, which none reads."""
REPLACED = Out("its Node was deleted during the check, and is another one now", reason="NodeReplaced")


def waiting(status: NodeCheckStatus, reason: str, message: str, now: datetime) -> NodeCheckStatus:
    """Report why the check has not begun yet."""
    phase = status.phase or NodeCheckPhase.PENDING
    return _with(status, now, {RUNNING: ConditionState(ConditionStatus.FALSE, reason, message)}, phase=phase)


def refused(status: NodeCheckStatus, refusal: CheckRefusal, now: datetime) -> NodeCheckStatus:
    """End a check that cannot be carried out."""
    failed = ConditionState(ConditionStatus.TRUE, refusal.reason, refusal.message)
    states = {RUNNING: replace(failed, status=ConditionStatus.FALSE), FAILED: failed}
    return _with(status, now, states, phase=NodeCheckPhase.FAILED, groups=[], completion_time=now)


def scoped(
    status: NodeCheckStatus, scope: Scope, withdrawn: Mapping[str, Out], as_of: datetime, now: datetime
) -> NodeCheckStatus:
    """Fix the participants.

    Args:
        as_of: the latest creation time of the check and its nodes.
    """
    status = status.model_copy(update={"nodes": list(scope.nodes)})
    return _with(
        _with_withdrawn(status, withdrawn),
        now,
        {},
        phase=NodeCheckPhase.PENDING,
        workers=[participant.worker for participant in scope.participants],
        incarnations=[participant.incarnation for participant in scope.participants],
        reused=list(scope.reused),
        nodes_as_of=as_of,
        start_time=now,
    )


def with_untested_accelerators(status: NodeCheckStatus, message: str, now: datetime) -> NodeCheckStatus:
    return _with(
        status, now, {ACCELERATORS_TESTED: ConditionState(ConditionStatus.FALSE, "NoProbe", message)}
    )


def with_classes(status: NodeCheckStatus, classes: Sequence[ClassFinding], now: datetime) -> NodeCheckStatus:
    """Add the findings on whole classes of hardware, which are not held against a node."""
    if not classes:
        return status
    message = "; ".join(f"{found.evidence} ({first_names(found.nodes)})" for found in classes)[:MAX_TEXT]
    return _with(status, now, {NODES_ALIKE: ConditionState(ConditionStatus.FALSE, "SpeedsDiffer", message)})


def started(status: NodeCheckStatus, now: datetime) -> NodeCheckStatus:
    """Begin the local tests."""
    running = ConditionState(ConditionStatus.TRUE, "LocalTests", "the nodes run their local tests")
    return _with(status, now, {RUNNING: running}, phase=NodeCheckPhase.RUNNING, round=0)


def settled(status: NodeCheckStatus, ended: StepResult, now: datetime) -> NodeCheckStatus:
    """Add the result of a step: the finished round, and the nodes that withdrew or were lost."""
    rounds = status.rounds
    if ended.round is not None:
        rounds = [*rounds, round_to_record(ended.round, status.nodes)]
    lost = [dropped(node, Cause.NO_ANSWER, message) for node, message in ended.unanswered.items()]
    status = _with_dropped(_with_withdrawn(status, ended.withdrawn), Cause.NO_ANSWER, lost)
    return _with(status, now, _nodes_tested(status), rounds=rounds)


def with_local_failures(status: NodeCheckStatus, history: CheckHistory) -> NodeCheckStatus:
    """Add the nodes that failed their local tests, so that the results outlive their Pods."""
    present = {node for cause in DROPPED for node in status.nodes_in(cause)}
    failures = [
        dropped(node, Cause.LOCAL_TEST, result.reason, result.action)
        for node, result in history.local.items()
        if not result.passed and node not in present
    ]
    return _with_dropped(status, Cause.LOCAL_TEST, failures)


def in_round(
    status: NodeCheckStatus, step: ProbeRound, participants: Iterable[CheckedNode], now: datetime
) -> NodeCheckStatus:
    """Publish the next round."""
    by_node = {participant.node: participant for participant in participants}
    groups = [_group([by_node[name] for name in members]) for members in step.groups]
    running = ConditionState(ConditionStatus.TRUE, "PairTests", describe_round(step))
    return _with(status, now, {RUNNING: running}, round=step.number, groups=groups)


def concluded(
    status: NodeCheckStatus, findings: Sequence[Finding], healthy: ConditionState, now: datetime
) -> NodeCheckStatus:
    """End the check with its verdicts."""
    finished = ConditionState(ConditionStatus.TRUE, "Finished", healthy.message)
    running = replace(finished, status=ConditionStatus.FALSE)
    named = {v: [found.node for found in findings if found.verdict is v] for v in UNHEALTHY}
    sets = named | {Cause.WITHDRAWN: status.nodes_in(Cause.WITHDRAWN)}
    status = status.model_copy(update={"node_sets": {}, "counts": {}})
    for kind, nodes in sets.items():
        status = _with_set(status, kind, nodes)
    return _with(
        status,
        now,
        {RUNNING: running, SUCCEEDED: finished, HEALTHY: healthy},
        phase=NodeCheckPhase.SUCCEEDED,
        groups=[],
        node_results=_detailed(findings),
        faulty_nodes=named[Verdict.FAULTY][:MOST_NAMED],
        stragglers=named[Verdict.STRAGGLER][:MOST_NAMED],
        inconclusive=named[Verdict.INCONCLUSIVE][:MOST_NAMED],
        completion_time=now,
    )


def seconds_to_expiry(check: NodeCheck, now: datetime) -> float | None:
    """Seconds until a finished check is deleted; None if it stays."""
    ttl, completed = check.spec.ttl_seconds_after_finished, check.status.completion_time
    return None if ttl is None or completed is None else ttl - (now - completed).total_seconds()


def with_places(status: NodeCheckStatus, diagnosis: Diagnosis) -> NodeCheckStatus:
    """Add the faulty links and domains, at most MAX_PLACES of each."""
    domains = [
        domain.model_copy(update={"nodes": domain.nodes[:MAX_NAMED_IN_DOMAIN]})
        for domain in diagnosis.domains[:MAX_PLACES]
    ]
    links = list(diagnosis.links[:MAX_PLACES])
    return status.model_copy(update={"faulty_links": links, "faulty_domains": domains})


def without_replaced(
    status: NodeCheckStatus,
    findings: Sequence[Finding],
    nodes: Mapping[str, Mapping[str, Any]],
    now: datetime,
) -> tuple[NodeCheckStatus, list[Finding]]:
    """Withdraw nodes whose name now belongs to another machine, which was not tested."""
    as_of = status.nodes_as_of
    replaced = {name for name, raw in nodes.items() if as_of is not None and created_at(raw) > as_of}
    replaced -= {*status.nodes_in(Cause.WITHDRAWN)}
    status = settled(status, StepResult(dict.fromkeys(sorted(replaced), REPLACED), {}), now)
    verdict = {"verdict": Verdict.INCONCLUSIVE, "causes": (Cause.WITHDRAWN,), "message": REPLACED.message}
    return status, [
        finding.model_copy(update=verdict) if finding.node in replaced else finding for finding in findings
    ]


def _detailed(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that the status keeps, in rank order: if there are too many, the worst."""
    by_need = sorted(range(len(findings)), key=lambda at: WORST_FIRST.index(findings[at].verdict))
    return [findings[at] for at in sorted(by_need[:MOST_NAMED])]


def _with_set(status: NodeCheckStatus, kind: Verdict | Cause, nodes: Collection[str]) -> NodeCheckStatus:
    """Replace a set of nodes, and its count."""
    among = {*nodes}
    places = [place for place, node in enumerate(status.nodes) if node in among]
    rest = {key: found for key, found in status.node_sets.items() if key != kind}
    sets = rest | ({kind.value: places} if places else {})
    return status.model_copy(update={"node_sets": sets, "counts": status.counts | {kind.value: len(places)}})


def _with_withdrawn(status: NodeCheckStatus, withdrawn: Mapping[str, Out]) -> NodeCheckStatus:
    """Add nodes that could not be tested."""
    if not withdrawn:
        return status
    left = [
        Withdrawal(node=node, message=out.message[:MAX_TEXT], reason=out.reason[:MAX_REASON])
        for node, out in withdrawn.items()
    ]
    status = _with_set(status, Cause.WITHDRAWN, [*status.nodes_in(Cause.WITHDRAWN), *withdrawn])
    return status.model_copy(update={"withdrawn": [*status.withdrawn, *left][:MOST_NAMED]})


def _with_dropped(status: NodeCheckStatus, cause: Cause, found: Sequence[Finding]) -> NodeCheckStatus:
    """Add nodes that drop out at their local tests; of too many, those with an action come first."""
    if not found:
        return status
    status = _with_set(status, cause, [*status.nodes_in(cause), *(finding.node for finding in found)])
    results = sorted([*status.node_results, *found], key=lambda each: each.action is None)
    return status.model_copy(update={"node_results": results[:MOST_NAMED]})


def _nodes_tested(status: NodeCheckStatus) -> dict[str, ConditionState]:
    """The condition that some nodes could not be tested, with the commonest reason."""
    withdrawn = status.withdrawn
    if not withdrawn:
        return {}
    ((reason, _),) = Counter(left.reason or "NotTested" for left in withdrawn).most_common(1)
    named = [left for left in withdrawn if (left.reason or "NotTested") == reason]
    of_all = f"{status.counts[Cause.WITHDRAWN]} of {counted(len(status.nodes), 'node')}"
    first = f"{first_names([left.node for left in named])}: {named[0].message}"
    message = f"{of_all} could not be tested, for no fault of theirs; {reason}: {first}"
    return {NODES_TESTED: ConditionState(ConditionStatus.FALSE, reason, message)}


def _with(
    status: NodeCheckStatus, now: datetime, states: Mapping[str, ConditionState], **fields: Any
) -> NodeCheckStatus:
    """The status with these conditions and fields."""
    conditions = list(status.conditions)
    for type_, state in states.items():
        conditions = with_condition(conditions, type_, state.status, state.reason, state.message, now)
    return status.model_copy(update={"conditions": conditions, **fields})


def _group(members: Sequence[CheckedNode]) -> CheckGroup:
    """A group, with the address of one of its agents: others may be gone, or of another Pod by now."""
    reports = (member.report for member in members)
    places = ((report.address, report.store_port) for report in reports if report is not None)
    address, port = next((place for place in places if all(place)), NOWHERE)
    return CheckGroup(members=[member.node for member in members], master_address=address, master_port=port)


# --- sentences --------------------------------------------------------------------------------------------


def summary_of(
    verdicts: Mapping[str, Verdict],
    findings: Sequence[Finding] = (),
    links: Sequence[FaultyLink] = (),
    domains: Sequence[FaultyDomain] = (),
) -> ConditionState:
    """The state of condition Healthy, by the verdicts on all nodes and the kept findings; the worst first."""
    faulty, slow, open_, _ = (
        [node for node, found in verdicts.items() if found is verdict] for verdict in WORST_FIRST
    )
    grounds = (
        (faulty, ConditionStatus.FALSE, "FaultyNodes"),
        (links, ConditionStatus.FALSE, "FaultyLinks"),
        (slow, ConditionStatus.FALSE, "Stragglers"),
        (open_, ConditionStatus.UNKNOWN, "Inconclusive"),
    )
    well = (ConditionStatus.TRUE, "AllHealthy")
    healthy, reason = next(((status, reason) for named, status, reason in grounds if named), well)
    if len(verdicts) == 1:
        ((node, verdict),) = verdicts.items()
        evidence = next((f": {finding.message}" for finding in findings if finding.message), "")
        return ConditionState(healthy, reason, f"node {node} is {verdict.value.lower()}{evidence}")
    kinds = ((faulty, "faulty"), (slow, "slow"), (open_, "inconclusive"))
    found = [f"{len(nodes)} {kind} ({first_names(nodes)})" for nodes, kind in kinds if nodes]
    count = len(verdicts)
    sentences = [f"of {count} nodes, {', '.join(found)}" if found else f"all {count} nodes are healthy"]
    if links:
        sentences.append(f"faulty links: {first_names(list(map(str, links)))}")
    if domains:
        sentences.append(f"look first at {first_names(list(map(str, domains)))}")
    return ConditionState(healthy, reason, "; ".join(sentences))


def describe_round(step: ProbeRound) -> str:
    """Describe a round that begins; a group of one node measures that node again."""
    alone = sum(len(group) == 1 for group in step.groups)
    meeting = len(step.groups) - alone
    parts = [f"{counted(meeting, 'group')} of nodes that test each other"] if meeting else []
    parts += [counted(alone, "node that measures", "nodes that measure") + " again"] if alone else []
    return f"round {step.number}: {', '.join(parts)}"


def describe_step(ended: StepResult, nodes: int) -> str:
    """Describe the result of a step."""
    if ended.round is None:
        out = len(ended.withdrawn) + len(ended.unanswered)
        return f"local tests: {nodes - out} of {counted(nodes, 'node has', 'nodes have')} answered"
    groups = ended.round.groups
    failed = ["+".join(group.members) for group in groups if not group.passed]
    text = f"round {ended.round.number}: {len(groups) - len(failed)} of {len(groups)} groups passed"
    return f"{text}; not: {first_names(failed)}" if failed else text


def first_names(names: Sequence[str]) -> str:
    return some_of(names, MAX_NAMED)
