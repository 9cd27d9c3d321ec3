"""What `dlr node-check` shows of a NodeCheck: one row a node, what was found, and a summary.

Pure functions of the objects and `now`. While the check runs, figures come from its workers' reports; at the
end from the NodeCheck alone, which is all that is left of it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.wording import counted
from crds.elasticworker import ProbeEnding
from crds.findings import WORST_FIRST, Action
from crds.nodecheck import NodeCheckPhase
from dlr.job.check_outcome import (
    condition_message,
    health,
    message,
    rounds_of,
    verdicts_of,
)
from dlr.job.wording import age, parse_time, significant
from healthcheck.measurements import Metric
from reconcilers.nodecheck.actions import advice

JSON = dict[str, Any]
Row = tuple[object, ...]

LIVE_COLUMNS = ("NODE", "STATE", "COMPUTE", "NETWORK", "WHY")
FINAL_COLUMNS = ("NODE", "VERDICT", "COMPUTE", "NETWORK")
MOST_REPORTS = 50
"""Nodes of which more than the table's row is shown; the others are in the NodeCheck."""
LINK_COLUMNS = ("LINK", "SYMPTOM", "WHY")
DOMAIN_COLUMNS = ("DOMAIN", "NODES", "WHY")
NO_CONTROLLER_AFTER_SECONDS = 10.0
COMPUTE = {
    Metric.GEMM_BF16_TFLOPS.value: "bf16",
    Metric.GEMM_FP16_TFLOPS.value: "fp16",
    Metric.GEMM_FP32_TFLOPS.value: "fp32",
}
NETWORK = Metric.PAIR_BUS_GBPS.value
BLAMING = (ProbeEnding.FAILED, ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED)


@dataclass(frozen=True)
class Look:
    """A NodeCheck and its workers, as found at one time."""

    check: JSON
    workers: Sequence[JSON] = ()
    """Workers of a check that has nodes and is not finished; in no order."""

    @property
    def status(self) -> JSON:
        found: JSON = self.check.get("status") or {}
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "")

    @property
    def nodes(self) -> list[str]:
        return list(self.status.get("nodes") or [])


def is_finished(check: JSON) -> bool:
    phase = (check.get("status") or {}).get("phase")
    return phase in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)


def head(look: Look, now: datetime, waited_seconds: float) -> list[tuple[str, str]]:
    """(label, text). `waited_seconds`: since the check was made, by the clock of who asks."""
    metadata = look.check["metadata"]
    return [
        ("Check", f"{metadata['namespace']}/{metadata['name']}"),
        ("Phase", _phase_line(look, now, waited_seconds)),
    ]


def _phase_line(look: Look, now: datetime, waited_seconds: float) -> str:
    status = look.status
    if not look.phase:
        return no_controller(look, waited_seconds) or "no controller has seen it yet"
    if look.phase == NodeCheckPhase.PENDING:
        line = f"Pending for {age(look.check['metadata']['creationTimestamp'], now)}"
        return f"{line}: {message(look.check)}".removesuffix(": ")
    if look.phase == NodeCheckPhase.RUNNING:
        return f"Running for {age(status.get('startTime'), now)}, {round_title(look)}: {_answers(look)}"
    started = status.get("startTime") or look.check["metadata"]["creationTimestamp"]
    took = age(started, parse_time(status.get("completionTime")) or now)
    rounds = len(status.get("rounds") or [])
    made = f", {rounds} round{'' if rounds == 1 else 's'}" if rounds else ""
    return f"{look.phase} after {took}{made}"


def no_controller(look: Look, waited_seconds: float) -> str:
    """Said of a check that nobody takes up."""
    if look.phase or waited_seconds < NO_CONTROLLER_AFTER_SECONDS:
        return ""
    return (
        f"no controller seems to run in this cluster: nobody has taken the check up for {waited_seconds:.0f}s"
    )


def round_title(look: Look) -> str:
    number = look.status.get("round")
    return f"round {number}" if number else "local tests"


def _answers(look: Look) -> str:
    asked = [node for node in look.nodes if is_asked(look, node)]
    found = reports(look)
    answered = sum(has_answered(look, found.get(node, {})) for node in asked)
    return f"{answered} of {counted(len(asked), 'node has', 'nodes have')} answered"


def is_asked(look: Look, node: str) -> bool:
    """It has a test to make in the current step."""
    status = look.status
    if node in withdrawals(look):
        return False
    if status.get("round"):
        return partners(look, node) is not None
    return node not in (status.get("reused") or [])


def has_answered(look: Look, report: JSON) -> bool:
    number = look.status.get("round")
    if not number:
        return bool(report.get("local"))
    return any(pair["round"] == number for pair in report.get("pairs") or [])


def partners(look: Look, node: str) -> list[str] | None:
    """Return the partners of the node in the current round; None if it is in no group."""
    for group in look.status.get("groups") or []:
        if node in group["members"]:
            return [member for member in group["members"] if member != node]
    return None


def withdrawals(look: Look) -> dict[str, str]:
    """Return why a node takes no further part, by node."""
    return {out["node"]: out["message"] for out in look.status.get("withdrawn") or []}


def workers_by_node(look: Look) -> dict[str, JSON]:
    by_index = {worker["spec"]["index"]: worker for worker in look.workers}
    indices = look.status.get("workers") or []
    return {
        node: by_index[index] for node, index in zip(look.nodes, indices, strict=False) if index in by_index
    }


def reports(look: Look) -> dict[str, JSON]:
    """Return what each node's agent has found for this check so far; {} until it has anything."""
    uid = look.check["metadata"]["uid"]
    lives = dict(zip(look.nodes, look.status.get("incarnations") or [], strict=False))
    found = {}
    for node, worker in workers_by_node(look).items():
        agent = (worker.get("status") or {}).get("agent") or {}
        report = agent.get("check") or {}
        if agent.get("incarnation") == lives.get(node) and report.get("uid") == uid:
            found[node] = report
    return found


def live_rows(look: Look) -> list[Row]:
    found, workers, out = reports(look), workers_by_node(look), withdrawals(look)
    buses = best_bus(rounds_of(look.status))
    rows: list[Row] = []
    for node in look.nodes:
        report = found.get(node, {})
        figures = _figures(report.get("local") or [])
        own_bus = _figures(report.get("pairs") or []).get(NETWORK)
        bus = max((value for value in (own_bus, buses.get(node)) if value is not None), default=None)
        why = out.get(node) or complaint(report) or _worker_message(workers.get(node))
        rows.append((node, _state(look, node, report), compute(figures), network(bus), why))
    return rows


def most_telling(rows: Sequence[Row], most: int) -> list[Row]:
    """What fits on a screen: the nodes with something to say first, else those that are still at work."""

    def how_telling(row: Row) -> int:
        _, state, _, _, why = row
        return 0 if why else 1 + str(state).endswith(("done", "passed lately"))

    return list(rows) if len(rows) <= most else sorted(rows, key=how_telling)[:most]


def _state(look: Look, node: str, report: JSON) -> str:
    if node in withdrawals(look):
        return "withdrawn"
    if look.phase != NodeCheckPhase.RUNNING:
        return "waiting"
    if not is_asked(look, node):
        return "done" if look.status.get("round") else "passed lately"
    step = round_title(look)
    if has_answered(look, report):
        return f"{step} done"
    if not look.status.get("round"):
        return step
    others = partners(look, node)
    return f"{step} with {', '.join(others)}" if others else f"{step}, measures again"


def complaint(report: JSON) -> str:
    """The newest thing that went wrong, in the node's own words."""
    for outcome in reversed([*(report.get("local") or []), *(report.get("pairs") or [])]):
        if outcome["ending"] in BLAMING:
            return outcome_text(outcome)
    return ""


def outcome_text(outcome: JSON) -> str:
    what = outcome.get("reason") or "; ".join(outcome.get("faults") or []) or outcome["ending"]
    return f"{outcome['probe']}: {what}"


def _worker_message(worker: JSON | None) -> str:
    """Why its Pod does not run yet, or no longer."""
    status = (worker or {}).get("status") or {}
    return "" if status.get("phase") == "Succeeded" else str(status.get("message") or "")


def final_rows(check: JSON) -> list[Row]:
    """Return the rows of a finished check; one that failed may have nodes without a verdict."""
    look = Look(check)
    results = {result["node"]: result for result in look.status.get("nodeResults") or []}
    verdicts = verdicts_of(look.status)
    buses = best_bus(rounds_of(look.status))
    rows: list[Row] = []
    for node in dict.fromkeys([*look.nodes, *results]):
        figures = results.get(node, {}).get("figures") or {}
        rows.append((node, verdicts.get(node), compute(figures), network(buses.get(node))))
    return rows


def reports_on_nodes(check: JSON, done: Mapping[str, str]) -> list[str]:
    """Three lines for each node that is not healthy, the worst first: the verdict and what was done, why, and
    what to do.

    Args:
        check: the finished NodeCheck.
        done: by node, what was done about it.
    """
    look = Look(check)
    results = {result["node"]: result for result in look.status.get("nodeResults") or []}
    out, verdicts = withdrawals(look), verdicts_of(look.status)
    guilty = [node for verdict in WORST_FIRST[:-1] for node, found in verdicts.items() if found == verdict]
    lines = []
    for node in guilty[:MOST_REPORTS]:
        result = results.get(node, {})
        deed = f": {done[node]}" if node in done else ""
        lines.append(f"{node} is {verdicts[node]}{deed}")
        lines.append(f"  Why: {result.get('message') or out.get(node) or 'see the NodeCheck'}")
        lines.append(f"  Do:  {advice(result.get('action') or Action.CHECK_AGAIN)}")
    if len(guilty) > MOST_REPORTS:
        lines.append(f"… and {counted(len(guilty) - MOST_REPORTS, 'more node')}")
    return lines


def _figures(outcomes: Sequence[JSON]) -> dict[str, float]:
    """Return the figures of several probes; of the same measure, the best."""
    best: dict[str, float] = {}
    for outcome in outcomes:
        for name, value in (outcome.get("figures") or {}).items():
            best[name] = max(value, best.get(name, value))
    return best


def best_bus(rounds: Sequence[JSON]) -> dict[str, float]:
    """Return the bus bandwidth of each node's fastest group, in GB/s."""
    best: dict[str, float] = {}
    for group in (group for round_ in rounds for group in round_["groups"]):
        bus = group["figures"].get(NETWORK)
        if bus is not None:
            best.update({node: max(bus, best.get(node, bus)) for node in group["members"]})
    return best


def compute(figures: Mapping[str, float]) -> str:
    """The type of number that the node is fastest with."""
    measured = {name: figures[name] for name in COMPUTE if name in figures}
    if not measured:
        return ""
    fastest = max(measured, key=measured.__getitem__)
    return f"{COMPUTE[fastest]} {significant(measured[fastest])} TFLOP/s"


def network(bus_gbps: float | None) -> str:
    return "" if bus_gbps is None else f"{significant(bus_gbps)} GB/s"


def link_rows(check: JSON) -> list[Row]:
    return [
        (f"{link['a']} and {link['b']}", link["symptom"], link.get("message"))
        for link in Look(check).status.get("faultyLinks") or []
    ]


def domain_rows(check: JSON) -> list[Row]:
    return [
        (f"{domain['level']}={domain['name']}", ", ".join(domain["nodes"]), domain.get("message"))
        for domain in Look(check).status.get("faultyDomains") or []
    ]


def closing_lines(check: JSON) -> list[str]:
    """The summary, after what could not be tested, and what is wrong with whole classes of hardware."""
    summary = f"{health(check)}: {message(check)}".removesuffix(": ")
    kinds = ("NodesTested", "AcceleratorsTested", "NodesAlike")
    besides = (condition_message(check, kind, "False") for kind in kinds)
    return [line for line in (*besides, summary) if line]
