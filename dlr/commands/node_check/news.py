"""Progress of a NodeCheck in lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.wording import counted
from crds.nodecheck import NodeCheckPhase
from dlr.commands.node_check.view import NETWORK, network
from dlr.job.check_outcome import message, rounds_of
from dlr.kube.api import JSON

NO_CONTROLLER_AFTER_SECONDS = 10.0


def news(check: JSON, workers: Sequence[JSON], waited_seconds: float) -> Iterator[str]:
    """Yield lines about all visible progress; the caller prints those that an earlier look did not have.

    Args:
        workers: workers of a check that has nodes and is not finished.
        waited_seconds: time since the check was created, by the clock of this machine.
    """
    status = check.get("status") or {}
    phase = status.get("phase")
    if not phase and waited_seconds >= NO_CONTROLLER_AFTER_SECONDS:
        yield "no controller seems to run in this cluster"
    if phase == NodeCheckPhase.PENDING and (why := message(check)):
        yield f"Pending: {why}"
    if phase == NodeCheckPhase.RUNNING:
        reused = status.get("reused") or []
        lately = f" ({len(reused)} of them passed lately, and are not tested again)" if reused else ""
        yield f"Running: local tests of {counted(len(status['nodes']), 'node')}{lately}"
    for worker in workers:
        of_pod = worker.get("status") or {}
        if of_pod.get("phase") == "Pending" and of_pod.get("message"):
            yield f"{worker['metadata']['name']}: {of_pod['message']}"
    for round_ in rounds_of(status):
        groups = round_["groups"]
        speeds = [group["figures"][NETWORK] for group in groups if NETWORK in group["figures"]]
        passed = sum(group["passed"] for group in groups)
        slowest = f", the slowest with {network(min(speeds))}" if speeds else ""
        yield f"round {round_['number']}: {passed} of {len(groups)} groups passed{slowest}"
    if phase == NodeCheckPhase.RUNNING and status.get("round") and status.get("groups"):
        yield f"round {status['round']} begins: {counted(len(status['groups']), 'group')}"
