"""Why a Pod or a training process ended: one table (docs/failures.md).

Read from the top, the first entry that fits decides.

* A Pod: its condition DisruptionTarget, `status.reason`, the container that failed (reason, exit code, text);
  then a deletion, which is judged by the taints of the node; then the node's readiness and the Lease.
* A training process: the cause that its agent tells, the signal or exit code, the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import re2

from crds import xids
from crds.agent_report import AgentFailure
from crds.elasticworker import ExitClass, FailureCause
from crds.protocol import DAMAGED_CHECKPOINT
from reconcilers.failure.consequences import follows_from_a_peer

BY_TAINT = "DeletionByTaintManager"

DISRUPTION_REASONS = {
    "DeletionByPodGC": ExitClass.NODE_LOST,
    "EvictionByEvictionAPI": ExitClass.PREEMPTED,
    "PreemptionByScheduler": ExitClass.PREEMPTED,
    "TerminationByKubelet": ExitClass.PREEMPTED,
}
"""Of the Pod condition DisruptionTarget; what else its reason may be counts as Preempted. `BY_TAINT`
says that the node has a NoExecute taint: one that Kubernetes gives a lost node, or a spot notice's, say.

https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

POD_REASONS = {
    "Evicted": ExitClass.PREEMPTED,
    "Preempting": ExitClass.PREEMPTED,
    "Terminated": ExitClass.PREEMPTED,
    "NodeShutdown": ExitClass.PREEMPTED,
    "Shutdown": ExitClass.PREEMPTED,
    "NodeAffinity": ExitClass.PREEMPTED,
    "OutOfcpu": ExitClass.PREEMPTED,
    "OutOfmemory": ExitClass.PREEMPTED,
    "OutOfpods": ExitClass.PREEMPTED,
    "NodeLost": ExitClass.NODE_LOST,
    "DeadlineExceeded": ExitClass.USER_ERROR,
}
"""Pod status.reason, set by the kubelet and the node lifecycle controller."""

CONTAINER_REASONS = {
    "OOMKilled": ExitClass.OOM,
    "ContainerStatusUnknown": ExitClass.NODE_LOST,
}
"""State terminated.reason; ContainerStatusUnknown is what a kubelet finds of containers after a reboot."""

PROGRAMS_REASONS = frozenset({"Error", "OOMKilled"})
"""With another reason, the message is the container runtime's own."""

HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Training code exits so to say that the device is at fault; DLRover's convention."""

KILL_EXIT_CODES = frozenset({137, 143, -9, -15})
"""128 + SIGKILL and 128 + SIGTERM; and the signals as torch tells them. Others are the program's crash."""

CAUSES = {
    FailureCause.OOM: ExitClass.OOM,
    FailureCause.HANG: ExitClass.HANG,
    FailureCause.DEVICE: ExitClass.HARDWARE_ERROR,
}
"""What the agent knows beyond exit code and text."""

HARDWARE_TEXTS = (
    # cudaGetErrorString of cudaErrorECCUncorrectable (214), and its ROCm counterpart
    r"uncorrectable ECC error",
    # cudaErrorNvlinkUncorrectable (220): "uncorrectable NVLink error detected during the execution"
    r"NVLink error",
    # cudaErrorHardwareStackError (714): "hardware stack error"
    r"(?:CUDA|HIP) error: hardware",
    # cudaErrorSystemNotReady (802): the fabric manager of the NVSwitches is not up
    r"system not yet initialized",
    # Xid 79 in words, and NVML_ERROR_GPU_IS_LOST. Xids in numbers: `crds.xids`
    r"GPU has fallen off the bus|GPU is lost",
    # NCCL's transport net_ib.cc, with ibv_event_type_str of IBV_EVENT_DEVICE_FATAL and IBV_EVENT_PORT_ERR
    r"Got async event : (?:local catastrophic error|port error)",
)
"""An error that says one of these is the device's, and so is one with the number of such an Xid."""

OWN_LIMIT_TEXTS = (
    r"exceed(?:s|ed) (?:its local ephemeral storage limit|the total limit of containers|the limit)",
)
"""An eviction for what the Pod itself used beyond its limits is the user's."""

LEAVING_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "kubernetes.azure.com/scheduled-event",
)
"""Beginnings of taints of nodes that are about to go: who is deleted there was preempted."""

LOST_TAINTS = (
    "node.kubernetes.io/out-of-service",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/not-ready",
)

FREE = frozenset(
    {
        ExitClass.KILLED,
        ExitClass.PREEMPTED,
        ExitClass.NODE_LOST,
        ExitClass.CHECK_FAILED,
        ExitClass.SUCCEEDED,
        ExitClass.DAMAGED_CHECKPOINT,
    }
)
"""Ends that are not the user's doing: they never spend `restartCount`."""

_DAMAGED = re2.compile(rf"(?:[\w.]+\.)?{DAMAGED_CHECKPOINT}\b")
_HARDWARE = re2.compile("|".join(HARDWARE_TEXTS))
_XID_NUMBER = re2.compile(xids.NUMBER_PATTERN)
_OWN_LIMIT = re2.compile("|".join(OWN_LIMIT_TEXTS))


@dataclass(frozen=True)
class PodEnd:
    exit_class: ExitClass
    reason: str
    exit_code: int | None = None
    message: str = ""
    log: str = ""
    """The end of its container's log, as the kubelet gives it, or its own termination message."""


def classify_pod(pod: Mapping[str, Any], node: Mapping[str, Any] | None = None) -> PodEnd:
    """How a Pod that is in phase Failed, or is being deleted, came to its end.

    Args:
        node: where it was, if that is known.
    """
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason, message = condition.get("reason", "DisruptionTarget"), condition.get("message", "")
            if reason == BY_TAINT and (node is None or _is_lost(node)):
                return PodEnd(ExitClass.NODE_LOST, reason, message=message)
            return _disrupted(DISRUPTION_REASONS.get(reason, ExitClass.PREEMPTED), reason, message)
    if status.get("reason") in POD_REASONS:
        reason = status["reason"]
        return _disrupted(POD_REASONS[reason], reason, status.get("message", ""))
    failed = [end for _, end in failed_containers(pod)]
    if failed:
        return _classify_container(failed[0])
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return deleted(node)
    return PodEnd(ExitClass.UNKNOWN, status.get("reason", "Unknown"), message=status.get("message", ""))


def deleted(node: Mapping[str, Any] | None) -> PodEnd:
    """How a Pod that somebody deleted, or that is gone, came to its end."""
    for key in _taints(node or {}):
        if key.startswith(LEAVING_TAINTS):
            return PodEnd(ExitClass.PREEMPTED, "NodeLeaving", message=f"the Pod was deleted; its node: {key}")
        if key in LOST_TAINTS:
            return PodEnd(ExitClass.NODE_LOST, "NodeLost", message=f"the Pod was deleted; its node: {key}")
    return PodEnd(ExitClass.KILLED, "Deleted", message="the Pod was deleted")


def _is_lost(node: Mapping[str, Any]) -> bool:
    return any(key in LOST_TAINTS for key in _taints(node))


def _taints(node: Mapping[str, Any]) -> list[str]:
    """Their keys."""
    return [taint.get("key", "") for taint in node.get("spec", {}).get("taints") or ()]


def node_lost(why: str) -> PodEnd:
    """The Pod's node is not ready."""
    return PodEnd(ExitClass.NODE_LOST, "NodeLost", message=why)


def heartbeat_lost(pod_name: str, seconds: float) -> PodEnd:
    """The agent's Lease was not renewed."""
    message = f"no heartbeat from {pod_name} for {seconds:.0f} s"
    return PodEnd(ExitClass.NODE_LOST, "HeartbeatLost", message=message)


def classify_process(failure: AgentFailure) -> ExitClass:
    """Why a training process failed, of which the agent lives to tell."""
    if failure.cause is not None:
        return CAUSES[failure.cause]
    by_code = _of_exit_code(failure.exit_code)
    if by_code is not None:
        return by_code
    if _DAMAGED.match(failure.message):
        return ExitClass.DAMAGED_CHECKPOINT
    if names_device_fault(f"{failure.message}\n{failure.log_tail}"):
        return ExitClass.HARDWARE_ERROR
    return ExitClass.UNKNOWN if follows_from_a_peer(failure) else ExitClass.USER_ERROR


def names_device_fault(text: str) -> bool:
    """Whether a text says of a failure that a device is to blame."""
    return _HARDWARE.search(text) is not None or any(map(xids.fails_by_hardware, xid_numbers(text)))


def xid_numbers(text: str) -> list[int]:
    """The numbers of the Xids that a text names."""
    return [int(found[1]) for found in _XID_NUMBER.finditer(text)]


def failed_containers(pod: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The names of a Pod's containers that ended with another code than 0, and how they did."""
    status = pod.get("status", {})
    return [
        (container.get("name", ""), end)
        for kind in ("initContainerStatuses", "containerStatuses")
        for container in status.get(kind, ())
        if (end := container.get("state", {}).get("terminated")) and end.get("exitCode") != 0
    ]


def _disrupted(exit_class: ExitClass, reason: str, message: str) -> PodEnd:
    own = exit_class is ExitClass.PREEMPTED and _OWN_LIMIT.search(message)
    return PodEnd(ExitClass.USER_ERROR if own else exit_class, reason, message=message)


def _classify_container(end: Mapping[str, Any]) -> PodEnd:
    code, reason, message = end.get("exitCode"), end.get("reason", "Error"), end.get("message", "")
    exit_class = CONTAINER_REASONS.get(reason) or _of_exit_code(code)
    if exit_class is None:
        exit_class = ExitClass.HARDWARE_ERROR if names_device_fault(message) else ExitClass.USER_ERROR
    if reason in PROGRAMS_REASONS:
        return PodEnd(exit_class, reason, code, log=message)
    return PodEnd(exit_class, reason, code, message)


def _of_exit_code(code: int | None) -> ExitClass | None:
    if code in KILL_EXIT_CODES:
        return ExitClass.KILLED
    return ExitClass.HARDWARE_ERROR if code in HARDWARE_EXIT_CODES else None
