"""Evidence on a check's nodes beside its own tests: their conditions, and their records. Pure.

A node that the tests could not clear is faulty if an agent of the administrator's, on the node itself,
reports a fault; and one that failed in this check is faulty if it failed like that in the ones before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crds.findings import MAX_TEXT, Cause, Finding, Verdict
from crds.nodecheck import NodeCheckStatus
from healthcheck.fleet import Node
from healthcheck.records import NodeTests, intermittent
from reconcilers.nodecheck.actions import action_for
from reconcilers.nodecheck.own_fault import is_ready, own_fault
from reconcilers.nodecheck.record import (
    nodes_in_domains,
    read_record,
    recent,
    tests_in,
    untested_nodes,
    with_findings,
)


def with_all_evidence(
    status: NodeCheckStatus,
    findings: Sequence[Finding],
    fleet: Sequence[Node],
    nodes: Mapping[str, dict[str, Any]],
    now: datetime,
) -> list[Finding]:
    """Return the final findings, each with what to do.

    Args:
        status: of the check, with its finished rounds, links and racks.
        findings: by its tests alone.
        fleet: its nodes, as the diagnosis takes them.
        nodes: the raw Nodes, by name.
        now: the time of the verdicts.
    """
    lost = {dropped.node for dropped in status.node_results if Cause.NO_ANSWER in dropped.causes}
    shared = nodes_in_domains(status)
    judged = []
    for finding in findings:
        node = nodes.get(finding.node)
        if finding.node in lost and is_ready(node):
            finding = _back(finding)
        if shared is not None and finding.node not in shared:
            finding = _with_own_fault(finding, node)
        judged.append(finding)
    before = {finding.node: read_record(nodes[finding.node]) for finding in judged if finding.node in nodes}
    found = intermittent(_with_this_check(before, status, judged, now), fleet)
    return [
        _with_action(
            _faulty(finding, Cause.INTERMITTENT, found[finding.node]) if finding.node in found else finding,
            faulty_before=any(past.verdict is Verdict.FAULTY for past in before.get(finding.node, ())),
        )
        for finding in judged
    ]


def _with_this_check(
    records: Mapping[str, Sequence[Finding]],
    status: NodeCheckStatus,
    findings: Sequence[Finding],
    now: datetime,
) -> dict[str, list[Finding]]:
    """Return the records of the nodes that this check has tested, with what it found."""
    faulty = [finding.node for finding in findings if finding.verdict is Verdict.FAULTY]
    tests = tests_in(status.model_copy(update={"faulty_nodes": faulty}))
    untested = untested_nodes(status, tests)
    return {
        finding.node: recent(with_findings(records[finding.node], [this]), now)
        for finding in findings
        if finding.node in records and finding.node not in untested
        for this in [tests.get(finding.node, NodeTests()).added_to(finding.model_copy(update={"time": now}))]
    }


def _back(finding: Finding) -> Finding:
    """Judge a node that was lost at its local tests and is Ready at the end: it was gone only once."""
    if finding.verdict is not Verdict.FAULTY:
        return finding
    message = f"{finding.message}; but its Node counts as Ready"[:MAX_TEXT]
    return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "message": message})


def _with_own_fault(finding: Finding, node: Mapping[str, Any] | None) -> Finding:
    """Judge a node that failed tests and was not cleared; one that could not be tested stays untested."""
    is_open = finding.verdict is Verdict.INCONCLUSIVE and Cause.WITHDRAWN not in finding.causes
    fault = own_fault(node) if is_open and node is not None else None
    if fault is None:
        return finding
    faulty = _faulty(finding, Cause.NODE_CONDITION, f"{fault}; {finding.message}")
    return faulty.model_copy(update={"action": fault.action})


def _faulty(finding: Finding, cause: Cause, message: str) -> Finding:
    update = {"verdict": Verdict.FAULTY, "causes": (cause,), "message": message[:MAX_TEXT]}
    return finding.model_copy(update=update)


def _with_action(finding: Finding, faulty_before: bool) -> Finding:
    """Add what to do, unless it is there already."""
    if finding.action is not None:
        return finding
    return finding.model_copy(update={"action": action_for(finding, faulty_before)})
