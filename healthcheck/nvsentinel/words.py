"""A node's verdict, by its condition `ElasticUnhealthy`, in the words of both protocols. Pure."""

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
"""Our name in NVSentinel; its rules match on it."""
MAX_WORDS = 1_024
ACTIONS: Mapping[Action | None, RecommendedAction] = {
    Action.RESET_GPU: RecommendedAction.COMPONENT_RESET,
    Action.REBOOT: RecommendedAction.RESTART_VM,
    Action.REPLACE: RecommendedAction.REPLACE_VM,
}
"""For all else, somebody has to look at it."""


@dataclass(frozen=True)
class NodeVerdict:
    """The verdict on a node, as its cordon states it."""

    node: str
    healthy: bool
    reason: str
    message: str
    since: datetime
    action: Action | None = None


def word_on(node: Mapping[str, Any]) -> NodeVerdict | None:
    """The verdict on a raw Node; None if there never was one against it."""
    conditions = node.get("status", {}).get("conditions") or ()
    found = next((c for c in conditions if c.get("type") == names.CONDITION_UNHEALTHY), None)
    if found is None:
        return None
    healthy, acted = found.get("status") != "True", read_acted(node)
    return NodeVerdict(
        node["metadata"]["name"],
        healthy,
        found.get("reason") or "",
        (found.get("message") or "")[:MAX_WORDS],
        datetime.fromisoformat(found["lastTransitionTime"]),
        None if healthy or acted is None else acted.action,
    )


def event_of(word: NodeVerdict, strategy: ProcessingStrategy) -> dict[str, Any]:
    """The fields of NVSentinel's `HealthEvents` of one event."""
    action = RecommendedAction.NONE if word.healthy else ACTIONS.get(word.action)
    event = {
        "version": PROTOCOL_VERSION,
        "agent": AGENT,
        "componentClass": "Node",
        "checkName": names.NVSENTINEL_CHECK,
        "isFatal": not word.healthy,
        "isHealthy": word.healthy,
        "message": word.message,
        "recommendedAction": RecommendedAction.CONTACT_SUPPORT if action is None else action,
        "errorCode": [] if word.healthy else [word.reason],
        "entitiesImpacted": [{"entityType": "NODE", "entityValue": word.node}],
        "generatedTimestamp": {"seconds": int(word.since.timestamp())},
        "nodeName": word.node,
        "processingStrategy": strategy,
    }
    return {"version": PROTOCOL_VERSION, "events": [event]}


def answer_of(word: NodeVerdict | None) -> dict[str, Any]:
    """The fields of NVRx's `HealthCheckResponse`: its launcher takes `fail_count` in `output`, and `success`.

    A node without any verdict is taken for well, as by a check that finds nothing.
    """
    failed = [] if word is None or word.healthy else [f"{word.reason}: {word.message}"]
    output = json.dumps({"fail_count": len(failed), "failed_checks": failed})
    return {"success": not failed, "exit_code": len(failed), "output": output}
