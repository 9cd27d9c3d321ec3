"""What has happened to a NodeCheck so far, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.wording import counted, some_of
from crds.agent_report import ProbeEnding
from crds.nodecheck import NodeCheckPhase
from dlr.commands.node_check.view import NETWORK, compute, network
from dlr.job.check_outcome import message, rounds_of
from dlr.kube.api import JSON

MOST_NAMED = 8
"""Groups of a round that are named."""
MOST_NODES = 50
"""In a check of more nodes, those alone have a line that fail their local tests or wait for a Pod."""
NO_CONTROLLER_AFTER_SECONDS = 10.0
BLAMING = (ProbeEnding.FAILED, ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED)


@dataclass(frozen=True)
class CheckSnapshot:
    """A NodeCheck and its workers, as found at one time."""

    check: JSON
    workers: Sequence[JSON] = ()
    """Workers of a check that has nodes and is not finished; in no order."""


def news(look: CheckSnapshot, waited_seconds: float) -> list[str]:
    """All that can still be seen; of two looks, the lines of the later one alone are new.

    Args:
        waited_seconds: since the check was made, by the clock of this machine.
    """
    status = look.check.get("status") or {}
    lines = [*_beginning(look.check, status, waited_seconds), *_local_tests(look, status)]
    withdrawn = status.get("withdrawn") or []
    for out in withdrawn:
        lines.append(f"{out['node']} is withdrawn: {out.get('message', '')}".removesuffix(": "))
    if (others := (status.get("counts") or {}).get("Withdrawn", 0) - len(withdrawn)) > 0:
        lines.append(f"{counted(others, 'other node is', 'other nodes are')} withdrawn")
    for round_ in rounds_of(status):
        lines += _finished_round(round_)
    return [*lines, *_current_round(status)]


def _beginning(check: JSON, status: JSON, waited_seconds: float) -> Iterator[str]:
    phase = status.get("phase")
    if not phase and waited_seconds >= NO_CONTROLLER_AFTER_SECONDS:
        yield "no controller seems to run in this cluster"
    if phase == NodeCheckPhase.PENDING and (why := message(check)):
        yield f"Pending: {why}"
    if phase == NodeCheckPhase.RUNNING:
        reused = status.get("reused") or []
        lately = f" ({len(reused)} of them passed lately, and are not tested again)" if reused else ""
        yield f"Running: local tests of {counted(len(status['nodes']), 'node')}{lately}"


def _local_tests(look: CheckSnapshot, status: JSON) -> Iterator[str]:
    nodes, uid = status.get("nodes") or [], look.check["metadata"]["uid"]
    workers = {worker["spec"]["index"]: worker.get("status") or {} for worker in look.workers}
    members = zip(nodes, status.get("workers") or [], status.get("incarnations") or [], strict=False)
    for node, index, incarnation in members:
        worker = workers.get(index) or {}
        agent = worker.get("agent") or {}
        report = agent.get("check") or {}
        is_current = agent.get("incarnation") == incarnation and report.get("uid") == uid
        outcomes = (report.get("local") or []) if is_current else []
        failed = [_described(outcome) for outcome in outcomes if outcome["ending"] in BLAMING]
        if failed:
            yield f"{node}: local tests failed: {'; '.join(failed)}"
        elif outcomes and len(nodes) <= MOST_NODES:
            figures = {
                name: value for each in outcomes for name, value in (each.get("figures") or {}).items()
            }
            yield f"{node}: local tests done, {compute(figures)}".removesuffix(", ")
        elif worker.get("phase") == "Pending" and worker.get("message"):
            yield f"{node}: {worker['message']}"


def _described(outcome: JSON) -> str:
    what = outcome.get("reason") or "; ".join(outcome.get("faults") or []) or outcome["ending"]
    return f"{outcome['probe']}: {what}"


def _current_round(status: JSON) -> Iterator[str]:
    number, groups = status.get("round"), status.get("groups") or []
    if number and groups and status.get("phase") == NodeCheckPhase.RUNNING:
        named = some_of([", ".join(group["members"]) for group in groups], MOST_NAMED, "; ")
        yield f"round {number} begins: {named}"


def _finished_round(round_: JSON) -> Iterator[str]:
    number, groups = round_["number"], round_["groups"]
    for group in groups:
        if not group["passed"]:
            members = ", ".join(group["members"])
            yield f"round {number}: {members} failed: {group['message']}".removesuffix(": ")
    speeds = [group["figures"][NETWORK] for group in groups if NETWORK in group["figures"]]
    passed = sum(group["passed"] for group in groups)
    slowest = f", the slowest with {network(min(speeds))}" if speeds else ""
    yield f"round {number}: {passed} of {len(groups)} groups passed{slowest}"
