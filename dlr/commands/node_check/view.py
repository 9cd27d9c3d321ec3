"""Output of `dlr node-check` for a finished NodeCheck: tables, a report on each bad node, and a summary.

Pure functions of the NodeCheck alone, whose workers may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from controller.wording import counted, some_of
from crds.actions import Action
from crds.findings import WORST_FIRST, Verdict
from dlr.job.check_outcome import condition_message, health, message, rounds_of, verdicts_of
from dlr.job.report import Row
from dlr.job.wording import age, parse_time, significant
from dlr.kube.api import JSON
from healthcheck.measurements import Metric
from reconcilers.findings.actions import advice

NODE_COLUMNS = ("NODE", "VERDICT", "COMPUTE", "NETWORK")
LINK_COLUMNS = ("LINK", "SYMPTOM", "WHY")
DOMAIN_COLUMNS = ("DOMAIN", "NODES", "WHY")
MOST_REPORTS, MOST_NAMED, MOST_REASONS = 8, 8, 2
"""Most reports on nodes, nodes that each names, and reasons that each gives; the NodeCheck has the others."""
GRAVITY: dict[str | None, int] = {verdict.value: place for place, verdict in enumerate(WORST_FIRST)}
COMPUTE = {
    Metric.GEMM_BF16_TFLOPS.value: "bf16",
    Metric.GEMM_FP16_TFLOPS.value: "fp16",
    Metric.GEMM_FP32_TFLOPS.value: "fp32",
}
NETWORK = Metric.PAIR_BUS_GBPS.value


def head(check: JSON, now: datetime) -> str:
    """Return the check's name, phase and duration."""
    metadata, status = check["metadata"], check["status"]
    started = status.get("startTime") or metadata["creationTimestamp"]
    took = age(started, parse_time(status.get("completionTime")) or now)
    rounds = len(status.get("rounds") or [])
    made = f", {counted(rounds, 'round')}" if rounds else ""
    return f"{metadata['namespace']}/{metadata['name']}: {status['phase']} after {took}{made}"


def node_rows(check: JSON) -> list[Row]:
    """Return the rows of nodes, the worst first; nodes of a failed check may have no verdict."""
    status = check["status"]
    results = {result["node"]: result for result in status.get("nodeResults") or []}
    verdicts, buses = verdicts_of(status), _best_bus(status)
    nodes = dict.fromkeys([*(status.get("nodes") or []), *results])
    return [
        (
            node,
            verdicts.get(node),
            compute(results.get(node, {}).get("figures") or {}),
            network(buses.get(node)),
        )
        for node in sorted(nodes, key=lambda node: GRAVITY.get(verdicts.get(node), 0))
    ]


def link_rows(check: JSON) -> list[Row]:
    return [
        (f"{link['a']} and {link['b']}", link["symptom"], link.get("message"))
        for link in check["status"].get("faultyLinks") or []
    ]


def domain_rows(check: JSON) -> list[Row]:
    return [
        (f"{domain['level']}={domain['name']}", some_of(domain["nodes"], MOST_NAMED), domain.get("message"))
        for domain in check["status"].get("faultyDomains") or []
    ]


def reports_on_nodes(check: JSON, done: Mapping[str, str]) -> list[str]:
    """Return three lines for unhealthy nodes, the worst first: verdict, why, and what to do.

    Nodes with the same verdict, action and advice share them.

    Args:
        done: action by node.
    """
    status = check["status"]
    results = {result["node"]: result for result in status.get("nodeResults") or []}
    withdrawn = {out["node"]: out.get("message") for out in status.get("withdrawn") or []}
    verdicts = verdicts_of(status)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in sorted(verdicts, key=lambda node: GRAVITY.get(verdicts[node], 0)):
        if verdicts[node] != Verdict.HEALTHY:
            action = advice(results.get(node, {}).get("action") or Action.CHECK_AGAIN)
            alike.setdefault((verdicts[node], done.get(node, ""), action), []).append(node)
    lines = []
    for (verdict, deed, action), nodes in [*alike.items()][:MOST_REPORTS]:
        why = {n: results.get(n, {}).get("message") or withdrawn.get(n) or "see the NodeCheck" for n in nodes}
        reasons = (
            [*why.values()] if len({*why.values()}) == 1 else [f"{n}: {text}" for n, text in why.items()]
        )
        verb = "is" if len(nodes) == 1 else "are"
        lines.append(f"{some_of(nodes, MOST_NAMED)} {verb} {verdict}" + (f": {deed}" if deed else ""))
        lines.append(f"  Why: {some_of([*dict.fromkeys(reasons)], MOST_REASONS, '; ')}")
        lines.append(f"  Do:  {action}")
    if len(alike) > MOST_REPORTS:
        left_out = [node for nodes in [*alike.values()][MOST_REPORTS:] for node in nodes]
        lines.append(f"… and {counted(len(left_out), 'more node')}")
    return lines


def summary(check: JSON) -> str:
    """Return the verdict on all nodes, with its reason."""
    return f"{health(check)}: {message(check)}".removesuffix(": ")


def notes(check: JSON) -> list[str]:
    """Return notes on what could not be tested, and on faults of whole classes of hardware."""
    kinds = ("NodesTested", "AcceleratorsTested", "NodesAlike")
    return [line for kind in kinds if (line := condition_message(check, kind, "False"))]


def compute(figures: Mapping[str, float]) -> str:
    """Return the highest speed of the node, with its dtype."""
    measured = {name: figures[name] for name in COMPUTE if name in figures}
    if not measured:
        return ""
    fastest = max(measured, key=measured.__getitem__)
    return f"{COMPUTE[fastest]} {significant(measured[fastest])} TFLOP/s"


def network(bus_gbps: float | None) -> str:
    return "" if bus_gbps is None else f"{significant(bus_gbps)} GB/s"


def _best_bus(status: JSON) -> dict[str, float]:
    """Return the bus bandwidth of each node's fastest group, in GB/s."""
    best: dict[str, float] = {}
    for group in (group for round_ in rounds_of(status) for group in round_["groups"]):
        bus = group["figures"].get(NETWORK)
        if bus is not None:
            best.update({node: max(bus, best.get(node, bus)) for node in group["members"]})
    return best
