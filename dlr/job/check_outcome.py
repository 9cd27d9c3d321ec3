"""Outcome of a NodeCheck (healthy, faulty or unknown), and its exit code."""

from __future__ import annotations

from collections.abc import Mapping

from crds.findings import UNHEALTHY, Verdict
from crds.nodecheck import NodeCheckPhase, nodes_in
from crds.ranges import from_text
from dlr.job.report import condition_of, message_of
from dlr.kube.api import JSON
from healthcheck.local import LocalHealth
from healthcheck.measurements import Metric

EXIT_CODES: Mapping[LocalHealth, int] = {
    LocalHealth.HEALTHY: 0,
    LocalHealth.FAULTY: 1,
    LocalHealth.UNKNOWN: 2,
}
COLUMNS = {"busGbps": Metric.PAIR_BUS_GBPS, "latencyUs": Metric.PAIR_LATENCY_US}
GUILTY = (Verdict.FAULTY, Verdict.STRAGGLER)


def health(check: JSON) -> LocalHealth:
    """Judge a finished NodeCheck. One faulty node, straggler or link makes it faulty."""
    status = check.get("status") or {}
    verdicts = {result["verdict"] for result in status.get("nodeResults") or []}
    if status.get("phase") != NodeCheckPhase.SUCCEEDED:
        return LocalHealth.UNKNOWN
    if verdicts.intersection(GUILTY) or status.get("faultyLinks"):
        return LocalHealth.FAULTY
    return LocalHealth.HEALTHY if verdicts == {Verdict.HEALTHY} else LocalHealth.UNKNOWN


def verdicts_of(status: JSON) -> dict[str, str]:
    """Return the verdict of each node. In a check that succeeded, nodes in none of its sets are healthy."""
    succeeded = status.get("phase") == NodeCheckPhase.SUCCEEDED
    verdicts = dict.fromkeys((status.get("nodes") or []) if succeeded else [], Verdict.HEALTHY.value)
    for verdict in reversed(UNHEALTHY):
        verdicts |= dict.fromkeys(nodes_in(status, verdict), verdict.value)
    return verdicts | {result["node"]: result["verdict"] for result in status.get("nodeResults") or []}


def rounds_of(status: JSON) -> list[JSON]:
    """Return the finished rounds, each with its groups' members and results."""
    nodes, rounds = status.get("nodes") or [], []
    for done in status.get("rounds") or []:
        failed = {*from_text(done.get("failed") or "")}
        reasons = {test["test"]: test.get("message") for test in done.get("reasons") or []}
        measured = {metric.value: done[column] for column, metric in COLUMNS.items() if done.get(column)}
        groups = [
            {
                "members": [nodes[place] for place in places],
                "passed": at not in failed,
                "message": reasons.get(at) or "",
                "figures": {metric: figures[at] for metric, figures in measured.items() if figures[at]},
            }
            for at, places in enumerate(done.get("tests") or [])
        ]
        rounds.append({"number": done["number"], "groups": groups})
    return rounds


def as_json(check: JSON, done: Mapping[str, str] | None = None) -> JSON:
    """Return a finished NodeCheck as JSON.

    Args:
        check: the NodeCheck.
        done: actions on the nodes, by node (`done.await_deeds`).
    """
    metadata, status = check["metadata"], check.get("status") or {}
    results = {result["node"]: result for result in status.get("nodeResults") or []}
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "phase": status.get("phase"),
        "verdict": health(check),
        "message": message(check),
        "nodes": [
            {
                "node": node,
                "verdict": verdict,
                "causes": results.get(node, {}).get("causes") or [],
                "message": results.get(node, {}).get("message") or "",
                "action": results.get(node, {}).get("action") or "",
                "done": (done or {}).get(node, ""),
                "figures": results.get(node, {}).get("figures") or {},
            }
            for node, verdict in verdicts_of(status).items()
        ],
        "links": status.get("faultyLinks") or [],
        "domains": status.get("faultyDomains") or [],
        "rounds": rounds_of(status),
    }


def message(check: JSON) -> str:
    """Return the controller's message about the check as a whole, or why it does not run."""
    phase = str((check.get("status") or {}).get("phase"))
    condition = {"Succeeded": "Healthy", "Failed": "Failed"}.get(phase, "Running")
    return condition_message(check, condition)


def condition_message(check: JSON, kind: str, status: str | None = None) -> str:
    """Return the message of the condition of that type, if it has that status."""
    return message_of(condition_of(check, kind, status))
