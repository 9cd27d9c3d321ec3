"""What `dlr node-check` shows of a finished NodeCheck: tables, a report on each bad node, and a summary.

Pure functions of the check alone, which is all that is left of it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller.wording import counted
from crds.findings import WORST_FIRST, Action
from dlr.job.check_outcome import condition_message, health, message, rounds_of, verdicts_of
from dlr.job.wording import age, parse_time, significant
from healthcheck.measurements import Metric
from reconcilers.nodecheck.actions import advice

JSON = dict[str, Any]
Row = tuple[object, ...]

NODE_COLUMNS = ("NODE", "VERDICT", "COMPUTE", "NETWORK")
LINK_COLUMNS = ("LINK", "SYMPTOM", "WHY")
DOMAIN_COLUMNS = ("DOMAIN", "NODES", "WHY")
MOST_REPORTS = 50
"""Nodes of which more than the table's row is shown; the others are in the NodeCheck."""
COMPUTE = {
    Metric.GEMM_BF16_TFLOPS.value: "bf16",
    Metric.GEMM_FP16_TFLOPS.value: "fp16",
    Metric.GEMM_FP32_TFLOPS.value: "fp32",
}
NETWORK = Metric.PAIR_BUS_GBPS.value


def head(check: JSON, now: datetime) -> list[tuple[str, str]]:
    metadata, status = check["metadata"], check["status"]
    started = status.get("startTime") or metadata["creationTimestamp"]
    took = age(started, parse_time(status.get("completionTime")) or now)
    rounds = len(status.get("rounds") or [])
    made = f", {counted(rounds, 'round')}" if rounds else ""
    return [
        ("Check", f"{metadata['namespace']}/{metadata['name']}"),
        ("Phase", f"{status['phase']} after {took}{made}"),
    ]


def node_rows(check: JSON) -> list[Row]:
    """The rows; nodes of a check that failed may have no verdict."""
    status = check["status"]
    results = {result["node"]: result for result in status.get("nodeResults") or []}
    verdicts, buses = verdicts_of(status), _best_bus(status)
    return [
        (
            node,
            verdicts.get(node),
            compute(results.get(node, {}).get("figures") or {}),
            network(buses.get(node)),
        )
        for node in dict.fromkeys([*(status.get("nodes") or []), *results])
    ]


def link_rows(check: JSON) -> list[Row]:
    return [
        (f"{link['a']} and {link['b']}", link["symptom"], link.get("message"))
        for link in check["status"].get("faultyLinks") or []
    ]


def domain_rows(check: JSON) -> list[Row]:
    return [
        (f"{domain['level']}={domain['name']}", ", ".join(domain["nodes"]), domain.get("message"))
        for domain in check["status"].get("faultyDomains") or []
    ]


def reports_on_nodes(check: JSON, done: Mapping[str, str]) -> list[str]:
    """Three lines for each node that is not healthy, the worst first: the verdict and what was done about it
    (`done`, by node), why, and what to do."""
    status = check["status"]
    results = {result["node"]: result for result in status.get("nodeResults") or []}
    withdrawn = {out["node"]: out["message"] for out in status.get("withdrawn") or []}
    verdicts = verdicts_of(status)
    guilty = [node for verdict in WORST_FIRST[:-1] for node, found in verdicts.items() if found == verdict]
    lines = []
    for node in guilty[:MOST_REPORTS]:
        result = results.get(node, {})
        deed = f": {done[node]}" if node in done else ""
        lines.append(f"{node} is {verdicts[node]}{deed}")
        lines.append(f"  Why: {result.get('message') or withdrawn.get(node) or 'see the NodeCheck'}")
        lines.append(f"  Do:  {advice(result.get('action') or Action.CHECK_AGAIN)}")
    if len(guilty) > MOST_REPORTS:
        lines.append(f"… and {counted(len(guilty) - MOST_REPORTS, 'more node')}")
    return lines


def summary(check: JSON) -> str:
    """The verdict on all nodes, with its reason."""
    return f"{health(check)}: {message(check)}".removesuffix(": ")


def notes(check: JSON) -> list[str]:
    """What could not be tested, and what is wrong with whole classes of hardware."""
    kinds = ("NodesTested", "AcceleratorsTested", "NodesAlike")
    return [line for kind in kinds if (line := condition_message(check, kind, "False"))]


def compute(figures: Mapping[str, float]) -> str:
    """The type of number that the node is fastest with."""
    measured = {name: figures[name] for name in COMPUTE if name in figures}
    if not measured:
        return ""
    fastest = max(measured, key=measured.__getitem__)
    return f"{COMPUTE[fastest]} {significant(measured[fastest])} TFLOP/s"


def network(bus_gbps: float | None) -> str:
    return "" if bus_gbps is None else f"{significant(bus_gbps)} GB/s"


def _best_bus(status: JSON) -> dict[str, float]:
    """The bus bandwidth of each node's fastest group, in GB/s."""
    best: dict[str, float] = {}
    for group in (group for round_ in rounds_of(status) for group in round_["groups"]):
        bus = group["figures"].get(NETWORK)
        if bus is not None:
            best.update({node: max(bus, best.get(node, bus)) for node in group["members"]})
    return best
