"""What a controller decides of a job with one worker: the next round after a failure, and the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crds.agent_report import AgentState
from crds.phases import JobPhase, RendezvousPhase

JSON = dict[str, Any]


def next_world(world: Mapping[str, Any], report: Mapping[str, Any]) -> JSON | None:
    """Return the ElasticWorld's spec after a report of the only worker; None if that changes nothing.

    Args:
        world: the spec before.
        report: `status.agent` of the worker.
    """
    state, left = report.get("state"), int(report.get("observedRound") or 0)
    round_ = int(world.get("round") or 0)
    if world.get("jobPhase") == JobPhase.SUCCEEDED or left < round_:
        return None  # it has not acted on this round yet
    if state == AgentState.SUCCEEDED:
        return {**world, "jobPhase": JobPhase.SUCCEEDED.value}
    if state not in (AgentState.READY, AgentState.FAILED):
        return None
    failed = state == AgentState.FAILED
    return {
        **world,
        "jobPhase": JobPhase.RUNNING.value,
        "failures": int(world.get("failures") or 0) + failed,
        "round": left + 1,
        "phase": RendezvousPhase.FORMED.value,
        "members": "0",
        "incarnations": {},
        "worldSize": report.get("localWorldSize"),
        "masterAddress": report.get("address"),
        "masterPort": report.get("storePort"),
        "brokenRound": left if failed else int(world.get("brokenRound") or 0),
    }
