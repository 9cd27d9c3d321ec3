"""Why a Pod or a training process ended: one table, whose first entry that fits decides (docs/failures.md).

* A Pod: its condition DisruptionTarget, `status.reason`, the container to blame (reason, exit code, text);
  then a deletion, by the taints of the node.
* A training process: the cause that its agent reports, the signal or exit code, the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import re2

from crds import xids
from crds.agent_report import AgentFailure, FailureCause
from crds.dlrover import OUR_BACKEND
from crds.elasticworker import ExitClass
from crds.failure_texts import DAMAGED_CHECKPOINT, PeerDeathTexts
from reconcilers.observed.containers import (
    Container,
    Role,
    begun_launcher,
    containers_of,
    exit_words,
    failed,
    memory_limit,
    to_blame,
    words_of,
)

text_follows_from_a_peer = PeerDeathTexts(re2.compile).explain


def follows_from_a_peer(failure: AgentFailure) -> bool:
    """Whether a process failure is a mere consequence of another's, as far as its agent and its text tell."""
    if failure.cause is FailureCause.TIMED_OUT:
        return True
    return failure.cause is None and text_follows_from_a_peer(failure.message, failure.log_tail)


BY_TAINT = "DeletionByTaintManager"
BY_DEVICE_TAINT = "DeletionByDeviceTaintManager"
DEVICE_TAINTED = (
    "a device of the Pod has a taint NoExecute, by its driver or a DeviceTaintRule; see which: "
    "kubectl get devicetaintrules,resourceslices -o yaml"
)
"""The Pod's condition does not say which device, nor whose taint (Kubernetes 1.37)."""

BY_GARBAGE_COLLECTOR = "DeletionByPodGC"
"""Its node is gone, or is out of service for good."""

DISRUPTION_REASONS = {
    BY_GARBAGE_COLLECTOR: ExitClass.NODE_LOST,
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
    "NodePorts": ExitClass.PREEMPTED,
    "TaintToleration": ExitClass.PREEMPTED,
    "TopologyAffinityError": ExitClass.PREEMPTED,
    "UnexpectedAdmissionError": ExitClass.PREEMPTED,
    "VolumeAttachmentLimitExceeded": ExitClass.PREEMPTED,
    "NodeLost": ExitClass.NODE_LOST,
    "DeadlineExceeded": ExitClass.USER_ERROR,
}
"""Pod status.reason, set by the kubelet and the node lifecycle controller. UnexpectedAdmissionError is mostly
a device plugin that is not back yet after a restart of the kubelet or node, or that has fewer devices now.
The scheduler knows nothing of it, nor of a TopologyAffinityError (devices on several NUMA nodes), and would
choose the node again: https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/."""

OUT_OF = "OutOf"
"""Beginning of the reason of a kubelet that lacks a resource: `OutOfcpu`, `OutOfnvidia.com/gpu`."""

CONTAINER_REASONS = {
    "OOMKilled": ExitClass.OOM,
    "ContainerStatusUnknown": ExitClass.NODE_LOST,
    "Unknown": ExitClass.NODE_LOST,
}
"""State terminated.reason. The last two are what a kubelet and a container runtime say of containers that
they do not find again after a restart of the node: the runtime with exit code 255."""
REBOOT_EXIT_CODES = frozenset({0, 255})
"""What other runtimes call the end of a container that a restart of its node has ended."""

PROGRAMS_REASONS = frozenset({"Error", "OOMKilled"})
"""With another reason, the message is the container runtime's own."""

HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Training code exits so to say that the device is at fault; DLRover's convention. Others do not."""

KILL_EXIT_CODES = frozenset({137, 143, -9, -15})
"""128 + SIGKILL and 128 + SIGTERM; and the signals as torch tells them. Others are the program's crash."""

CAUSES = {
    FailureCause.OOM: ExitClass.OOM,
    FailureCause.HANG: ExitClass.HANG,
    FailureCause.DEVICE: ExitClass.HARDWARE_ERROR,
    FailureCause.KILLED_CHILD: ExitClass.KILLED,
}
"""What the agent knows beyond exit code and text."""

HARDWARE_TEXTS = (
    # cudaGetErrorString of cudaErrorECCUncorrectable (214), and its ROCm counterpart
    r"uncorrectable ECC error",
    # cudaErrorNvlinkUncorrectable (220): "uncorrectable NVLink error detected during the execution"
    r"NVLink error",
    # cudaErrorContained (721): "Invalid access of peer GPU memory over nvlink or a hardware error"
    r"over nvlink or a hardware error",
    # cudaErrorHardwareStackError (714): "hardware stack error"
    r"(?:CUDA|HIP) error: hardware",
    # cudaErrorSystemNotReady (802): the fabric manager of the NVSwitches is not up
    r"system not yet initialized",
    # Xid 79 in words, and NVML_ERROR_GPU_IS_LOST. Xids in numbers: `crds.xids`
    r"GPU has fallen off the bus|GPU is lost",
    # NCCL's transport net_ib.cc, with ibv_event_type_str of IBV_EVENT_DEVICE_FATAL and IBV_EVENT_PORT_ERR
    r"Got async event : (?:local catastrophic error|port error)",
    # nvidia-container-toolkit, in the message of a container that cannot start on a node with a broken driver
    r"nvidia-container-cli: (?:initialization|detection|device) error",
)
"""An error that says one of these is the device's, and so is one with the number of such an Xid."""

OWN_LIMIT_TEXTS = (
    r"exceed(?:s|ed) (?:its local ephemeral storage limit|the total limit of containers|the limit)",
)
"""An eviction for what the Pod itself used beyond its limits is the user's."""
LARGER_TEXT = r"Container (\S+) was using \S+, (?:request is \S+, has larger|which exceeds its request)"
"""So the kubelet names a container that used more than it asked for, where it evicts the Pod for that.

https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/helpers.go
"""
LOW_TEXT = r"low on resource: ([\w-]+)"
"""So it names what the node lacks."""

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

AGENT_NOT_FOUND = (
    "torchrun did not find dlr: write `dlr run` in its place, or `PYTHONPATH=FOLDER:$PYTHONPATH` where the "
    "command sets it; Python's -I and -E ignore it"
)
"""What is wrong where torch's registry of rendezvous does not know ours, and what to do."""

_DAMAGED = re2.compile(rf"(?:[\w.]+\.)?{DAMAGED_CHECKPOINT}\b")
_HARDWARE = re2.compile("|".join(HARDWARE_TEXTS))
_XID_NUMBER = re2.compile(xids.NUMBER_PATTERN)
_NOT_REGISTERED = re2.compile(rf"rendezvous backend '{OUR_BACKEND}' is not registered")
"""torch/distributed/elastic/rendezvous/api.py."""
_OWN_LIMIT = re2.compile("|".join(OWN_LIMIT_TEXTS))
_LARGER = re2.compile(LARGER_TEXT)
_LOW = re2.compile(LOW_TEXT)


@dataclass(frozen=True)
class PodEnd:
    exit_class: ExitClass
    reason: str
    exit_code: int | None = None
    message: str = ""
    log: str = ""
    """The end of its container's log, as the kubelet gives it, or its own termination message."""
    container: str = ""
    """The container whose end it is; empty where it is none's."""
    role: Role = Role.TRAINING
    """That container's."""

    @property
    def other_container(self) -> str:
        """The same container, where it is not the training container."""
        return "" if self.role is Role.TRAINING else self.container


def classify_pod(pod: Mapping[str, Any], node: Mapping[str, Any] | None = None) -> PodEnd:
    """How a Pod that has failed, or is being deleted, came to its end."""
    status = pod.get("status", {})
    disruption = disruption_of(pod)
    if disruption is not None:
        reason, message = disruption.get("reason", "DisruptionTarget"), disruption.get("message", "")
        if reason == BY_TAINT and (node is None or _is_lost(node)):
            return PodEnd(ExitClass.NODE_LOST, reason, message=message)
        if reason == BY_DEVICE_TAINT:
            message = DEVICE_TAINTED
        return _disrupted(pod, DISRUPTION_REASONS.get(reason, ExitClass.PREEMPTED), reason, message)
    by_reason = _of_pod_reason(status.get("reason") or "")
    if by_reason is not None:
        return _disrupted(pod, by_reason, status["reason"], status.get("message", ""))
    blamed = to_blame(containers_of(pod))
    if blamed is not None:
        return classify_container(*blamed)
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return end_of_deleted(node)
    return PodEnd(ExitClass.UNKNOWN, status.get("reason", "Unknown"), message=status.get("message", ""))


def disruption_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition of a Pod that says what took it from its node."""
    conditions = pod.get("status", {}).get("conditions") or ()
    disruptions = (c for c in conditions if c.get("type") == "DisruptionTarget" and c.get("status") == "True")
    return next(disruptions, None)


def is_taken(pod: Mapping[str, Any]) -> bool:
    """Whether the Pod was ended from outside: then an exit code may be an answer to SIGTERM."""
    by_reason = _of_pod_reason(pod.get("status", {}).get("reason") or "")
    is_deleted = "deletionTimestamp" in pod.get("metadata", {})
    return is_deleted or by_reason is not None or disruption_of(pod) is not None


def end_of_deleted(node: Mapping[str, Any] | None) -> PodEnd:
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


def classify_process(failure: AgentFailure) -> ExitClass:
    """Why a training process failed, of which the agent lives to tell."""
    if failure.cause in CAUSES:
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


def says_nothing(end: Mapping[str, Any]) -> bool:
    """Whether a container may have ended so, whatever its program was about: killed, or lost by its node."""
    is_lost = CONTAINER_REASONS.get(end.get("reason", "")) is ExitClass.NODE_LOST
    return is_lost or end.get("exitCode") in KILL_EXIT_CODES


def failed_containers(pod: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The names of a Pod's containers that ended with another code than 0, and how they did."""
    ends = ((container.name, container.end) for container in containers_of(pod))
    return [(name, end) for name, end in ends if end is not None and failed(end)]


def _of_pod_reason(reason: str) -> ExitClass | None:
    return ExitClass.PREEMPTED if reason.startswith(OUT_OF) else POD_REASONS.get(reason)


def _disrupted(pod: Mapping[str, Any], exit_class: ExitClass, reason: str, message: str) -> PodEnd:
    """How a disruption ended the Pod; what the Pod itself used is the user's doing, or a want of memory."""
    if exit_class is ExitClass.PREEMPTED and _OWN_LIMIT.search(message):
        return PodEnd(ExitClass.USER_ERROR, reason, message=message)
    larger = _LARGER.search(message) if exit_class is ExitClass.PREEMPTED else None
    if larger is None:
        return PodEnd(exit_class, reason, message=message)
    low = _LOW.search(message)
    is_memory = low is not None and low[1] == "memory"
    role = next((each.role for each in containers_of(pod) if each.name == larger[1]), Role.TRAINING)
    return PodEnd(
        ExitClass.OOM if is_memory else ExitClass.USER_ERROR,
        reason,
        message=message if is_memory else f"{message.rstrip()} Ask for as much in the Pod template",
        container=larger[1],
        role=role,
    )


def classify_container(container: Container, end: Mapping[str, Any]) -> PodEnd:
    """Why a container ended so, by itself."""
    code, reason, message = end.get("exitCode"), end.get("reason", "Error"), words_of(end)
    exit_class = CONTAINER_REASONS.get(reason) or _of_exit_code(code)
    if exit_class is None:
        exit_class = ExitClass.HARDWARE_ERROR if names_device_fault(message) else ExitClass.USER_ERROR
    if container.role is not Role.TRAINING and code in HARDWARE_EXIT_CODES:
        exit_class = ExitClass.USER_ERROR
    whose: dict[str, Any] = {"container": container.name, "role": container.role}
    if container.role is not Role.TRAINING and exit_class is ExitClass.OOM:
        return PodEnd(exit_class, reason, code, _out_of_memory(container), message, **whose)
    if reason in PROGRAMS_REASONS:
        launcher = begun_launcher(end)
        hidden = launcher and not message.strip() and exit_class is ExitClass.USER_ERROR
        hint = f"{exit_words(code)}, see the log of {launcher}" if hidden else ""
        if _NOT_REGISTERED.search(message):
            hint = AGENT_NOT_FOUND
        return PodEnd(exit_class, reason, code, hint, message, **whose)
    return PodEnd(exit_class, reason, code, message, **whose)


def _out_of_memory(container: Container) -> str:
    """What to do about a container whose memory dlr does not raise."""
    amount = memory_limit(container.spec)
    limit = f" (limit {amount})" if amount else ""
    return (
        f"the {container.role} {container.name} ran out of memory{limit}: "
        "raise its memory limit in the Pod template"
    )


def _of_exit_code(code: int | None) -> ExitClass | None:
    if code in KILL_EXIT_CODES:
        return ExitClass.KILLED
    return ExitClass.HARDWARE_ERROR if code in HARDWARE_EXIT_CODES else None
