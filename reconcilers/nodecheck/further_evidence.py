"""What speaks of a check's nodes besides its own tests: conditions of their own, and their records. Pure.

A node that the tests could not clear is faulty if an agent of the administrator's, on the node itself, tells
of a fault; and one that failed in this check is faulty if it failed like that in the ones before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crds.nodecheck import INTERMITTENT, NODE_CONDITION, NodeCheck, NodeCheckStatus, NodeResult, NodeVerdict
from healthcheck.diagnosis import Cause
from healthcheck.fleet import Node
from healthcheck.records import intermittent
from reconcilers.nodecheck.actions import with_actions
from reconcilers.nodecheck.own_fault import is_ready, own_fault
from reconcilers.nodecheck.record import as_evidence, nodes_in_domains, read_record, results_of, with_results

MAX_TEXT = 1_024


def with_all_evidence(
    check: NodeCheck,
    status: NodeCheckStatus,
    results: Sequence[NodeResult],
    fleet: Sequence[Node],
    nodes: Mapping[str, dict[str, Any]],
    now: datetime,
) -> list[NodeResult]:
    """The verdicts by all that is known, each with what to do.

    Args:
        check: that ends now.
        status: its finished rounds, links and racks.
        results: the verdicts by its tests alone.
        fleet: its nodes, as the diagnosis takes them.
        nodes: the raw Nodes, by name.
        now: the time of the verdicts.
    """
    shared = nodes_in_domains(status)
    lost = {result.node for result in status.node_results if Cause.NO_ANSWER in result.causes}
    results = [
        _back(result) if result.node in lost and is_ready(nodes.get(result.node)) else result
        for result in results
    ]
    told = [
        result if shared is None or result.node in shared else _with_own_fault(result, nodes.get(result.node))
        for result in results
    ]
    before = {result.node: read_record(nodes[result.node]) for result in told if result.node in nodes}
    faulty = [result.node for result in told if result.verdict is NodeVerdict.FAULTY]
    provisional = status.model_copy(update={"faulty_nodes": faulty, "completion_time": now})
    of_this = results_of(check.model_copy(update={"status": provisional}))
    records = {
        node: as_evidence(with_results(known, [of_this[node]]), now)
        for node, known in before.items()
        if node in of_this
    }
    found = intermittent(records, fleet)
    told = [
        _faulty(result, INTERMITTENT, str(found[result.node])) if result.node in found else result
        for result in told
    ]
    faulty_before = {
        node for node, known in before.items() if any(r.verdict is NodeVerdict.FAULTY for r in known)
    }
    return with_actions(told, faulty_before)


def _back(result: NodeResult) -> NodeResult:
    """A node that was lost at its local tests and is Ready at the end of the check: it was gone only once."""
    if result.verdict is not NodeVerdict.FAULTY:
        return result
    message = f"{result.message}; but its Node counts as Ready"[:MAX_TEXT]
    return result.model_copy(update={"verdict": NodeVerdict.INCONCLUSIVE, "message": message})


def _with_own_fault(result: NodeResult, node: Mapping[str, Any] | None) -> NodeResult:
    """A node that failed tests and was not cleared; one that could not be tested stays untested."""
    open_ = result.verdict is NodeVerdict.INCONCLUSIVE and Cause.WITHDRAWN not in result.causes
    fault = own_fault(node) if open_ and node is not None else None
    if fault is None:
        return result
    faulty = _faulty(result, NODE_CONDITION, f"{fault}; {result.message}")
    return faulty.model_copy(update={"action": fault.action})


def _faulty(result: NodeResult, cause: str, message: str) -> NodeResult:
    return result.model_copy(
        update={"verdict": NodeVerdict.FAULTY, "causes": [cause], "message": message[:MAX_TEXT]}
    )
