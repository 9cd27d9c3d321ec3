"""What a check comes to: healthy, faulty or unknown, and the exit code that scripts see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crds.nodecheck import NodeCheckPhase, NodeVerdict
from dlr.commands.errors import CommandError
from healthcheck.local import Health

JSON = dict[str, Any]

EXIT_CODES: Mapping[Health, int] = {Health.HEALTHY: 0, Health.FAULTY: 1, Health.UNKNOWN: 2}
GUILTY = (NodeVerdict.FAULTY, NodeVerdict.STRAGGLER)


class CouldNotTell(CommandError):
    """There is nothing to check, or no way to."""

    exit_code = EXIT_CODES[Health.UNKNOWN]


def health(check: JSON) -> Health:
    """Of a finished NodeCheck. One faulty node, straggler or link is enough, whatever else is unknown."""
    status = check.get("status") or {}
    verdicts = {result["verdict"] for result in status.get("nodeResults") or []}
    if status.get("phase") != NodeCheckPhase.SUCCEEDED:
        return Health.UNKNOWN
    if verdicts.intersection(GUILTY) or status.get("faultyLinks"):
        return Health.FAULTY
    return Health.HEALTHY if verdicts == {NodeVerdict.HEALTHY} else Health.UNKNOWN


def as_json(check: JSON) -> JSON:
    """A finished NodeCheck for programs."""
    metadata, status = check["metadata"], check.get("status") or {}
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "phase": status.get("phase"),
        "verdict": health(check),
        "message": message(check),
        "nodes": [
            {
                "node": result["node"],
                "verdict": result["verdict"],
                "causes": result.get("causes") or [],
                "message": result.get("message") or "",
                "figures": result.get("figures") or {},
            }
            for result in status.get("nodeResults") or []
        ],
        "links": status.get("faultyLinks") or [],
        "domains": status.get("faultyDomains") or [],
        "rounds": status.get("rounds") or [],
    }


def message(check: JSON) -> str:
    """What the controller says of the check as a whole, or what keeps it from being carried out."""
    phase = str((check.get("status") or {}).get("phase"))
    told_by = {"Succeeded": "Healthy", "Failed": "Failed"}
    return condition_message(check, told_by.get(phase, "Running"))


def condition_message(check: JSON, kind: str, status: str | None = None) -> str:
    """Of the condition of that type, if it has that status."""
    for condition in (check.get("status") or {}).get("conditions") or []:
        if condition["type"] == kind and status in (None, condition["status"]):
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
