"""Verdict on a node, from its condition `ElasticUnhealthy`, in the form of both protocols. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crds import names
from crds.actions import Action
from crds.cordon import read_acted
from healthcheck.nvsentinel.messages import PROTOCOL_VERSION, ProcessingStrategy, RecommendedAction

AGENT = "dlr"
"""Our name in NVSentinel, on which its rules match."""
MAX_MESSAGE = 1_024
ACTIONS: Mapping[Action | None, RecommendedAction] = {
    Action.RESET_GPU: RecommendedAction.COMPONENT_RESET,
    Action.REBOOT: RecommendedAction.RESTART_VM,
    Action.REPLACE: RecommendedAction.REPLACE_VM,
}
"""Actions by remedy; all others need a person."""


@dataclass(frozen=True)
class NodeVerdict:
    """Verdict on a node, as its cordon states it."""

    node: str
    healthy: bool
    reason: str
    message: str
    since: datetime
    action: Action | None = None


def verdict_on(node: Mapping[str, Any]) -> NodeVerdict | None:
    """Return the verdict on a raw Node; None if there never was one against it."""
    conditions = node.get("status", {}).get("conditions") or ()
    found = next((c for c in conditions if c.get("type") == names.CONDITION_UNHEALTHY), None)
    if found is None:
        return None
    healthy, acted = found.get("status") != "True", read_acted(node)
    return NodeVerdict(
        node["metadata"]["name"],
        healthy,
        found.get("reason") or "",
        (found.get("message") or "")[:MAX_MESSAGE],
        datetime.fromisoformat(found["lastTransitionTime"]),
        None if healthy or acted is None else acted.action,
    )


def event_of(verdict: NodeVerdict, strategy: ProcessingStrategy) -> dict[str, Any]:
    """Return the fields of NVSentinel's `HealthEvents` with one event."""
    action = RecommendedAction.NONE if verdict.healthy else ACTIONS.get(verdict.action)
    event = {
        "version": PROTOCOL_VERSION,
        "agent": AGENT,
        "componentClass": "Node",
        "checkName": names.NVSENTINEL_CHECK,
        "isFatal": not verdict.healthy,
        "isHealthy": verdict.healthy,
        "message": verdict.message,
        "recommendedAction": RecommendedAction.CONTACT_SUPPORT if action is None else action,
        "errorCode": [] if verdict.healthy else [verdict.reason],
        "entitiesImpacted": [{"entityType": "NODE", "entityValue": verdict.node}],
        "generatedTimestamp": {"seconds": int(verdict.since.timestamp())},
        "nodeName": verdict.node,
        "processingStrategy": strategy,
    }
    return {"version": PROTOCOL_VERSION, "events": [event]}


def answer_of(verdict: NodeVerdict | None) -> dict[str, Any]:
    """Return the fields of NVRx's `HealthCheckResponse`: its launcher reads `fail_count` in `output`, and
    `success`.

    A node without a verdict counts as healthy, as in a check without findings.
    """
    failed = [] if verdict is None or verdict.healthy else [f"{verdict.reason}: {verdict.message}"]
    output = json.dumps({"fail_count": len(failed), "failed_checks": failed})
    return {"success": not failed, "exit_code": len(failed), "output": output}
