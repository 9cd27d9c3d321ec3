"""Why a Pod or a training process ended: one table (docs/architecture.md, "Failures")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from crds.elasticworker import AgentFailure, ExitClass

HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Training code exits so to say that the device is at fault; DLRover's convention."""

KILL_EXIT_CODES = frozenset({137, 143})
"""128 + SIGKILL and 128 + SIGTERM."""

KILL_SIGNALS = frozenset({-9, -15})
"""As torch reports them."""

POD_REASONS = {
    "Evicted": ExitClass.PREEMPTED,
    "Preempting": ExitClass.PREEMPTED,
    "Terminated": ExitClass.PREEMPTED,
    "NodeShutdown": ExitClass.PREEMPTED,
    "Shutdown": ExitClass.PREEMPTED,
    "NodeLost": ExitClass.NODE_LOST,
}
"""Pod status.reason, set by the kubelet and the node lifecycle controller."""

CONTAINER_REASONS = {
    "OOMKilled": ExitClass.OOM,
    "ContainerStatusUnknown": ExitClass.NODE_LOST,
}
"""State terminated.reason; ContainerStatusUnknown is what a kubelet finds of containers after a reboot."""

FREE = frozenset({ExitClass.KILLED, ExitClass.PREEMPTED, ExitClass.NODE_LOST, ExitClass.SUCCEEDED})
"""Ends that are not the user's doing: they never spend `restartCount`."""


@dataclass(frozen=True)
class PodEnd:
    exit_class: ExitClass
    reason: str
    exit_code: int | None = None
    message: str = ""


def classify_pod(pod: dict[str, Any]) -> PodEnd:
    """How a Pod that is in phase Failed, or is being deleted, came to its end.

    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    """
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = condition.get("reason", "DisruptionTarget")
            lost = reason == "DeletionByTaintManager"
            return PodEnd(
                ExitClass.NODE_LOST if lost else ExitClass.PREEMPTED,
                reason,
                message=condition.get("message", ""),
            )
    if status.get("reason") in POD_REASONS:
        return PodEnd(POD_REASONS[status["reason"]], status["reason"], message=status.get("message", ""))
    failed = [end for end in _terminated(status) if end.get("exitCode") != 0]
    if failed:
        return _classify_container(failed[0])
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return PodEnd(ExitClass.KILLED, "Deleted", message="the Pod was deleted")
    return PodEnd(ExitClass.UNKNOWN, status.get("reason", "Unknown"), message=status.get("message", ""))


def classify_process(failure: AgentFailure) -> ExitClass:
    """Why a training process failed, of which the agent lives to tell."""
    if failure.exit_code in KILL_SIGNALS:
        return ExitClass.KILLED
    if failure.exit_code in HARDWARE_EXIT_CODES:
        return ExitClass.HARDWARE_ERROR
    return ExitClass.USER_ERROR


def _terminated(status: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind, ()):
            end = container.get("state", {}).get("terminated")
            if end:
                yield end


def _classify_container(end: dict[str, Any]) -> PodEnd:
    code, reason = end.get("exitCode"), end.get("reason", "Error")
    if reason in CONTAINER_REASONS:
        exit_class = CONTAINER_REASONS[reason]
    elif code in KILL_EXIT_CODES:
        exit_class = ExitClass.KILLED
    elif code in HARDWARE_EXIT_CODES:
        exit_class = ExitClass.HARDWARE_ERROR
    else:
        exit_class = ExitClass.USER_ERROR
    return PodEnd(exit_class, reason, code, end.get("message", ""))
