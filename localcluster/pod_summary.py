"""The STATUS, READY and RESTARTS of a Pod: what kubectl shows is computed from many parts of its status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localcluster.ages import age
from localcluster.resource import JSON

_TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass
class PodSummary:
    """Counted up while a Pod's container statuses are read."""

    containers: int
    reason: str
    ready_containers: int = 0
    restarts: int = 0
    last_restart: str = ""
    """When the container that was restarted last had ended, RFC 3339 (these compare as text)."""
    restarts_text: str = ""

    def count_restarts(self, status: JSON) -> None:
        self.restarts += status.get("restartCount", 0)
        ended = _at(status, "lastState", "terminated", "finishedAt")
        if ended and ended > self.last_restart:
            self.last_restart = ended


def summarize(pod: JSON, now: datetime) -> PodSummary:
    """What kubectl shows of a Pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    initial = status.get("reason") or status.get("phase") or "Unknown"
    summary = PodSummary(containers=len(spec.get("containers") or []), reason=initial)
    if any(
        each.get("type") == "PodScheduled" and each.get("reason") == "SchedulingGated"
        for each in status.get("conditions") or []
    ):
        summary.reason = "SchedulingGated"
    sidecars = _sidecar_names(spec)
    summary.containers += len(sidecars)
    initializing = _read_init_containers(summary, spec, status, sidecars)
    if not initializing or _condition(status, "Initialized"):
        _read_containers(summary, status, sidecars)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            summary.reason = "Unknown"
        elif status.get("phase") not in _TERMINAL_PHASES:
            summary.reason = "Terminating"
    summary.restarts_text = str(summary.restarts)
    if summary.restarts and summary.last_restart:
        summary.restarts_text += f" ({age(summary.last_restart, now)} ago)"
    return summary


def _at(value: Any, *path: str) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _condition(status: JSON, name: str) -> bool:
    return any(
        each.get("type") == name and each.get("status") == "True" for each in status.get("conditions") or []
    )


def _sidecar_names(spec: JSON) -> frozenset[str]:
    """Init containers that go on running beside the others."""
    return frozenset(
        container["name"]
        for container in spec.get("initContainers") or []
        if container.get("restartPolicy") == "Always"
    )


def _exit_text(terminated: JSON) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _read_init_containers(summary: PodSummary, spec: JSON, status: JSON, sidecars: frozenset[str]) -> bool:
    """Put down how far initialization is; answers whether it goes on."""
    for position, container in enumerate(status.get("initContainerStatuses") or []):
        summary.count_restarts(container)
        terminated = _at(container, "state", "terminated")
        waiting = _at(container, "state", "waiting", "reason")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if container["name"] in sidecars and container.get("started"):
            summary.ready_containers += bool(container.get("ready"))
            continue
        if terminated is not None:
            summary.reason = f"Init:{_exit_text(terminated)}"
        elif waiting and waiting != "PodInitializing":
            summary.reason = f"Init:{waiting}"
        else:
            summary.reason = f"Init:{position}/{len(spec.get('initContainers') or [])}"
        return True
    return False


def _read_containers(summary: PodSummary, status: JSON, sidecars: frozenset[str]) -> None:
    """Put down what the containers do; the restarts of ended init containers count no more."""
    summary.restarts, summary.last_restart = 0, ""
    for container in status.get("initContainerStatuses") or []:
        if container["name"] in sidecars:
            summary.count_restarts(container)
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        summary.count_restarts(container)
        state = container.get("state") or {}
        if _at(state, "waiting", "reason"):
            summary.reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            summary.reason = _exit_text(state["terminated"])
        elif container.get("ready") and state.get("running") is not None:
            running = True
            summary.ready_containers += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _condition(status, "Ready") else "NotReady"
