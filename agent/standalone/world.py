"""What a controller decides of a job with one worker: the next round after a failure, and the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crds.protocol import AgentState, JobPhase, RendezvousPhase

JSON = dict[str, Any]


def next_status(status: Mapping[str, Any], report: Mapping[str, Any]) -> JSON | None:
    """The job's status after a report of its only worker; None if that changes nothing.

    Args:
        status: the job's: `phase`, `rendezvous`, `restarts`.
        report: `status.agent` of the worker.
    """
    world = status.get("rendezvous") or {}
    state, left = report.get("state"), int(report.get("observedRound") or 0)
    round_ = int(world.get("round") or 0)
    if status.get("phase") == JobPhase.SUCCEEDED or left < round_:
        return None  # it has not acted on this round yet
    if state == AgentState.SUCCEEDED:
        return {**status, "phase": JobPhase.SUCCEEDED.value}
    if state not in (AgentState.READY, AgentState.FAILED):
        return None
    failed = state == AgentState.FAILED
    restarts = dict(status.get("restarts") or {})
    if failed:
        kind = str((report.get("failure") or {}).get("cause") or "Failed")
        restarts[kind] = restarts.get(kind, 0) + 1
    return {
        **status,
        "phase": JobPhase.RUNNING.value,
        "restarts": restarts,
        "rendezvous": {
            "round": left + 1,
            "phase": RendezvousPhase.FORMED.value,
            "members": "0",
            "incarnations": {},
            "worldSize": report.get("localWorldSize"),
            "masterAddress": report.get("address"),
            "masterPort": report.get("storePort"),
            "reason": f"after a failure in round {left}" if failed else "",
            "brokenRound": left if failed else int(world.get("brokenRound") or 0),
        },
    }
