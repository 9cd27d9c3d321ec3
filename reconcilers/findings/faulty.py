"""Decides which nodes are faulty, cleared, or only suspected. Pure.

A node is faulty

* by its own tests in a check, by silence, by crashes, or by tests with others (`healthcheck/diagnosis.py`);
* if these could not clear it, and an agent of the administrator's on the node reports a fault
  (`reconcilers/observed/hardware.py`);
* if it failed in a check as in the ones before, by its record (`healthcheck/intermittent.py`);
* if the last Pod of a worker ended on it with a hardware error.

This module also decides which of these findings cordon a node; `reconcilers/observed/trust.py` decides in
which namespaces they count. A worker leaves a node with a reported fault at once, whatever checks say
(`reconcilers/world/reported_faults.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.wording import counted, shortened
from crds.elasticworker import ElasticWorker, ExitClass
from crds.findings import MAX_TEXT, Cause, Finding, Verdict
from crds.nodecheck import NodeCheckStatus
from healthcheck.fleet import Node
from healthcheck.intermittent import NodeTests, intermittent
from reconcilers.findings.actions import action_for, action_for_error
from reconcilers.findings.finished import FinishedCheck
from reconcilers.findings.machine import created_at, gpus_of, unhealthy_gpus
from reconcilers.findings.record import (
    nodes_in_domains,
    read_record,
    recent,
    tests_in,
    unhealthy_taint,
    untested_nodes,
    with_findings,
)
from reconcilers.observed.hardware import TRUE, own_fault
from reconcilers.runtime.clock import LONG_AGO


def with_all_evidence(
    status: NodeCheckStatus,
    findings: Sequence[Finding],
    fleet: Sequence[Node],
    nodes: Mapping[str, dict[str, Any]],
    gpus: Mapping[str, int],
    now: datetime,
) -> list[Finding]:
    """Return the final findings, each with its action.

    Args:
        status: status of the check, with its finished rounds, links and racks.
        gpus: number of tested GPUs of each node that took part itself.
    """
    lost = {*status.nodes_in(Cause.NO_ANSWER)}
    shared = nodes_in_domains(status)
    judged = []
    for finding in findings:
        node = nodes.get(finding.node)
        if finding.node in lost and is_ready(node):
            finding = _back(finding)
        if finding.healthy and node is not None:
            finding = _without_untested_gpus(finding, node, gpus.get(finding.node))
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
    """Return the records of the nodes that this check has tested, with its findings."""
    faulty = [finding.node for finding in findings if finding.verdict is Verdict.FAULTY]
    tests = tests_in(status, faulty)
    untested = untested_nodes(status, tests)
    return {
        finding.node: recent(with_findings(records[finding.node], [this]), now)
        for finding in findings
        if finding.node in records and finding.node not in untested
        for this in [tests.get(finding.node, NodeTests()).added_to(finding.model_copy(update={"time": now}))]
    }


def _back(finding: Finding) -> Finding:
    """Judge a node that was lost at its local tests and is Ready at the end."""
    if finding.verdict is not Verdict.FAULTY:
        return finding
    message = f"{finding.message}; but its Node counts as Ready"[:MAX_TEXT]
    return finding.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "message": message})


def _without_untested_gpus(finding: Finding, node: Mapping[str, Any], tested: int | None) -> Finding:
    """Judge a cordoned node that passed: a GPU that the check's Pod did not get may be why it is cordoned."""
    if unhealthy_taint(node) is None:
        return finding
    message = ""
    if (unhealthy := unhealthy_gpus(node)) > 0:
        those = counted(unhealthy, "of its GPUs is", "of its GPUs are")
        message = f"{those} unhealthy by its device plugin, and could not be tested"
    elif tested is not None and tested < (there := gpus_of(node)):
        message = f"only {tested} of its {there} GPUs got tested" if tested else "none of its GPUs got tested"
    if not message:
        return finding
    message = f"{message}; {finding.message}".removesuffix("; ")[:MAX_TEXT]
    update = {"verdict": Verdict.INCONCLUSIVE, "causes": (Cause.NODE_CONDITION,), "message": message}
    return finding.model_copy(update=update)


def _with_own_fault(finding: Finding, node: Mapping[str, Any] | None) -> Finding:
    """Judge a node that failed tests and was not cleared, by its own conditions."""
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
    """Add the action, unless a condition of the Node has set it."""
    if finding.action is not None and Cause.NODE_CONDITION in finding.causes:
        return finding
    return finding.model_copy(update={"action": action_for(finding, faulty_before)})


# --- which findings decide ---------------------------------------------------------------------------------

MAX_KEPT_EVIDENCE = 240
"""Most characters of the evidence in a Node's annotation, which every watcher of Nodes receives."""


def last_error(findings: Iterable[Finding]) -> datetime:
    """Return when training last ended on a node by a hardware error."""
    return max((found.time for found in findings if Cause.HARDWARE_ERROR in found.causes), default=LONG_AGO)


def decisions_of(checks: Iterable[FinishedCheck], node: str, after: datetime) -> list[Finding]:
    """Return the checks' decisions on a node; a check that began before its failure cannot clear it."""
    found = ((done, decision_of(done, node)) for done in checks)
    return [finding for done, finding in found if finding and not (finding.healthy and done.began < after)]


def decision_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding if it decides. A node that passed no round is neither cleared nor accused."""
    finding = _finding_of(done, node)
    if finding is None:
        return None
    decides = finding.verdict is Verdict.FAULTY or (finding.healthy and finding.passed > 0)
    return finding if decides else None


def suspicion_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding if the node is slow, or was tested and could not be cleared."""
    finding = _finding_of(done, node)
    is_open = finding is not None and finding.verdict in (Verdict.STRAGGLER, Verdict.INCONCLUSIVE)
    return finding if is_open and node not in done.withdrawn else None


def _finding_of(done: FinishedCheck, node: str) -> Finding | None:
    """Return the finding to keep on a Node; None if the check has `cordon: false`, or has not ended."""
    if not done.check.spec.cordon or done.check.status.completion_time is None:
        return None
    finding = done.finding_on(node)
    if finding is None:
        return None
    evidence = "" if finding.healthy else shortened(finding.message, MAX_KEPT_EVIDENCE)
    return finding.model_copy(update={"message": evidence, "figures": {}, "failed_with": ()})


def finding_of_worker(worker: ElasticWorker, raw: dict[str, Any]) -> Finding | None:
    """Return the finding on a raw Node, if the worker's last Pod ended there by a hardware error.

    If the node was not in the cache at that time, it is the same machine if it is older than the worker.
    """
    end, metadata = worker.status.last_exit, worker.metadata
    if end is None or end.exit_class is not ExitClass.HARDWARE_ERROR:
        return None
    if end.node_uid:
        is_of = end.node_uid == raw["metadata"]["uid"]
    else:
        is_of = (metadata.creation_timestamp or LONG_AGO) >= created_at(raw)
    if end.node_name != raw["metadata"]["name"] or not is_of:
        return None
    return Finding(
        node=end.node_name,
        verdict=Verdict.FAULTY,
        causes=(Cause.HARDWARE_ERROR,),
        message=shortened(end.message, MAX_KEPT_EVIDENCE),
        action=action_for_error(end.message),
        time=end.time,
        source=f"{metadata.namespace}/{metadata.name}",
    )


def is_ready(node: Mapping[str, Any] | None) -> bool:
    """Whether a raw Node is Ready."""
    conditions = (node or {}).get("status", {}).get("conditions") or ()
    return any((c.get("type"), c.get("status")) == ("Ready", TRUE) for c in conditions)
