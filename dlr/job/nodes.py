"""Check results and cordons of the nodes of a job's Pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.wording import some_of
from crds.findings import Verdict
from crds.nodecheck import nodes_in
from dlr.job.case import Case
from dlr.job.check_outcome import verdicts_of
from dlr.job.report import is_ready
from dlr.job.wording import age
from dlr.kube.api import JSON
from reconcilers.findings.record import unhealthy_taint


@dataclass(frozen=True)
class CheckFinding:
    """Finding of one NodeCheck about nodes of the job."""

    check: str
    reason: str
    """The reason in the condition `NodesChecked`: FaultyNodes, FaultyLinks, Stragglers, Inconclusive."""
    text: str


@dataclass(frozen=True)
class NodeState:
    name: str
    verdict: str | None
    """The verdict of the newest NodeCheck that has one."""
    cordon: str | None
    """`Cordoned` by dlr, or `Unschedulable` by another."""
    ready: bool | None
    """Whether the node is ready; None if it could not be read."""


FOUND = {
    Verdict.FAULTY: ("FaultyNodes", "faulty"),
    Verdict.STRAGGLER: ("Stragglers", "slow"),
    Verdict.INCONCLUSIVE: ("Inconclusive", "perhaps faulty"),
}
"""The condition's reason, and an adjective for the nodes, by verdict."""
NAMED = 3
"""Most nodes or links that a sentence names."""


def finished_checks(case: Case) -> list[JSON]:
    """Return the checks that have verdicts, the newest first."""
    done = [
        each
        for each in case.checks
        if (each.get("status") or {}).get("phase") == "Succeeded" and each["status"].get("completionTime")
    ]
    return sorted(done, key=lambda each: str(each["status"]["completionTime"]), reverse=True)


def check_findings(case: Case) -> Iterator[CheckFinding]:
    """Yield the bad findings of the newest check of each of the job's nodes."""
    remaining = set(case.node_names)
    for check in finished_checks(case):
        status = check["status"]
        ours = remaining & set(status.get("nodes") or ())
        if not ours:
            continue
        ago = f"{age(status['completionTime'], case.now)} ago"
        yield from _bad_nodes(check, ours, ago)
        yield from _bad_links(check, ours, ago)
        remaining -= ours


def _bad_nodes(check: JSON, ours: set[str], ago: str) -> Iterator[CheckFinding]:
    status, name = check["status"], check["metadata"]["name"]
    results = {result["node"]: result for result in status.get("nodeResults") or ()}
    for verdict, (reason, word) in FOUND.items():
        # In the order of the check, which a person has chosen.
        bad = [node for node in nodes_in(status, verdict) if node in ours]
        if not bad:
            continue
        detail = ""
        if example := next((node for node in bad if results.get(node, {}).get("message")), None):
            detail = f": {example}: {results[example]['message']}"
        text = f"NodeCheck {name} found {some_of(bad, NAMED)} {word}, {ago}{detail}"
        yield CheckFinding(name, reason, text)


def _bad_links(check: JSON, ours: set[str], ago: str) -> Iterator[CheckFinding]:
    """Yield the bad links between two of the job's nodes; it uses no others."""
    status, name = check["status"], check["metadata"]["name"]
    ends = [
        f"{link['a']} and {link['b']} ({link['symptom']}: {link.get('message') or '-'})"
        for link in status.get("faultyLinks") or ()
        if {link["a"], link["b"]} <= ours
    ]
    if ends:
        between = some_of(ends, NAMED, "; ")
        text = f"NodeCheck {name} found bad links between {between}, whose nodes are well, {ago}"
        yield CheckFinding(name, "FaultyLinks", text)


def node_states(case: Case) -> list[NodeState]:
    """Return the state of each of the job's nodes, by name."""
    verdicts: dict[str, str] = {}
    for check in finished_checks(case):
        verdicts = verdicts_of(check["status"]) | verdicts
    objects = {node["metadata"]["name"]: node for node in case.nodes}
    found = []
    for name in sorted(case.node_names):
        node = objects.get(name)
        ready = None if node is None else is_ready(node)
        found.append(NodeState(name, verdicts.get(name), _cordon(node), ready))
    return found


def _cordon(node: JSON | None) -> str | None:
    if node is None:
        return None
    if unhealthy_taint(node) is not None:
        return "Cordoned"
    return "Unschedulable" if (node.get("spec") or {}).get("unschedulable") else None
