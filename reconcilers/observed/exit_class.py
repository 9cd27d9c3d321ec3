"""Exit classes of Pods and training processes; the first of these that applies decides (docs/failures.md).

* Pod: its condition DisruptionTarget, `status.reason`, the container to blame (reason, exit code, text), a
  deletion, by the taints of the node.
* Training process: the cause that its agent reports, the signal or exit code, the text.
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
    """Whether a process failed only because a peer did, by the agent's cause and the error's text."""
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
"""Exit classes by reason of the Pod condition DisruptionTarget; other reasons count as Preempted. `BY_TAINT`
means a NoExecute taint of the node: Kubernetes' own on a lost node, or a spot notice, for example.

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
"""Exit classes by Pod status.reason, of kubelets and the node lifecycle controller. UnexpectedAdmissionError
is mostly a device plugin that is not back yet after a restart of kubelet or node, or has fewer devices now.
The scheduler sees neither it nor a TopologyAffinityError (devices on several NUMA nodes), and would choose
the node again: https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/."""

OUT_OF = "OutOf"
"""Prefix of a kubelet's reason for a missing resource: `OutOfcpu`, `OutOfnvidia.com/gpu`."""

CONTAINER_REASONS = {
    "OOMKilled": ExitClass.OOM,
    "ContainerStatusUnknown": ExitClass.NODE_LOST,
    "Unknown": ExitClass.NODE_LOST,
}
"""Exit classes by state.terminated.reason. After a restart of the node, kubelet and container runtime give
the last two to containers that they do not find again, the runtime with exit code 255."""
REBOOT_EXIT_CODES = frozenset({0, 255})
"""Exit codes that other runtimes report of containers that a restart of the node ended."""

PROGRAMS_REASONS = frozenset({"Error", "OOMKilled"})
"""Reasons of ends whose message is the program's; with others, it is the container runtime's."""

HARDWARE_EXIT_CODES = frozenset({14, 201, 202})
"""Codes with which training containers blame the device, by DLRover's convention."""

KILL_EXIT_CODES = frozenset({137, 143, -9, -15})
"""SIGKILL and SIGTERM, as 128 + n and in torch's notation. Other signals are crashes of the program."""

CAUSES = {
    FailureCause.OOM: ExitClass.OOM,
    FailureCause.HANG: ExitClass.HANG,
    FailureCause.DEVICE: ExitClass.HARDWARE_ERROR,
    FailureCause.KILLED_CHILD: ExitClass.KILLED,
}
"""Exit classes by the cause that an agent reports."""

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
"""Texts of errors that a device caused."""

OWN_LIMIT_TEXTS = (
    r"exceed(?:s|ed) (?:its local ephemeral storage limit|the total limit of containers|the limit)",
)
"""Texts of evictions for use beyond the Pod's own limits, which are user errors."""
LARGER_TEXT = r"Container (\S+) was using \S+, (?:request is \S+, has larger|which exceeds its request)"
"""Kubelet's text about a container whose use beyond its request had the Pod evicted.

https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/helpers.go
"""
LOW_TEXT = r"low on resource: ([\w-]+)"
"""Kubelet's text about the resource that the node lacks."""

LEAVING_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "kubernetes.azure.com/scheduled-event",
)
"""Prefixes of taints of nodes that are about to go: Pods that are deleted there were preempted."""

LOST_TAINTS = (
    "node.kubernetes.io/out-of-service",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/not-ready",
)

AGENT_NOT_FOUND = (
    "torchrun did not find dlr: write `dlr run` in its place, or `PYTHONPATH=FOLDER:$PYTHONPATH` where the "
    "command sets it; Python's -I and -E ignore it"
)
"""Hint if torch's registry of rendezvous backends lacks ours."""

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
    """End of a Pod, or of one of its containers."""

    exit_class: ExitClass
    reason: str
    exit_code: int | None = None
    message: str = ""
    log: str = ""
    """Last lines of its container's log, from the kubelet, or its own termination message."""
    container: str = ""
    """The container that ended; empty if the end is the whole Pod's."""
    role: Role = Role.TRAINING
    """Role of that container."""

    @property
    def other_container(self) -> str:
        """The container, unless it is the training container."""
        return "" if self.role is Role.TRAINING else self.container


def classify_pod(pod: Mapping[str, Any], node: Mapping[str, Any] | None = None) -> PodEnd:
    """Return the end of a Pod that has failed or is being deleted."""
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
    """Return the condition that says what took a Pod from its node; None without one."""
    conditions = pod.get("status", {}).get("conditions") or ()
    disruptions = (c for c in conditions if c.get("type") == "DisruptionTarget" and c.get("status") == "True")
    return next(disruptions, None)


def is_taken(pod: Mapping[str, Any]) -> bool:
    """Whether the Pod was ended from outside, so that its exit code may come from SIGTERM."""
    by_reason = _of_pod_reason(pod.get("status", {}).get("reason") or "")
    is_deleted = "deletionTimestamp" in pod.get("metadata", {})
    return is_deleted or by_reason is not None or disruption_of(pod) is not None


def end_of_deleted(node: Mapping[str, Any] | None) -> PodEnd:
    """Return the end of a Pod that somebody deleted, or that is gone."""
    for key in _taints(node or {}):
        if key.startswith(LEAVING_TAINTS):
            return PodEnd(ExitClass.PREEMPTED, "NodeLeaving", message=f"the Pod was deleted; its node: {key}")
        if key in LOST_TAINTS:
            return PodEnd(ExitClass.NODE_LOST, "NodeLost", message=f"the Pod was deleted; its node: {key}")
    return PodEnd(ExitClass.KILLED, "Deleted", message="the Pod was deleted")


def _is_lost(node: Mapping[str, Any]) -> bool:
    return any(key in LOST_TAINTS for key in _taints(node))


def _taints(node: Mapping[str, Any]) -> list[str]:
    """Return the keys of a node's taints."""
    return [taint.get("key", "") for taint in node.get("spec", {}).get("taints") or ()]


def classify_process(failure: AgentFailure) -> ExitClass:
    """Return the exit class of a training process whose failure its agent reports."""
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
    """Whether the text of a failure blames a device."""
    return _HARDWARE.search(text) is not None or any(map(xids.fails_by_hardware, xid_numbers(text)))


def xid_numbers(text: str) -> list[int]:
    """Return the numbers of the Xids in a text."""
    return [int(found[1]) for found in _XID_NUMBER.finditer(text)]


def says_nothing(end: Mapping[str, Any]) -> bool:
    """Whether an end says nothing of the container's program: it was killed, or its node lost it."""
    is_lost = CONTAINER_REASONS.get(end.get("reason", "")) is ExitClass.NODE_LOST
    return is_lost or end.get("exitCode") in KILL_EXIT_CODES


def failed_containers(pod: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names and ends of a Pod's containers that ended with another code than 0."""
    ends = ((container.name, container.end) for container in containers_of(pod))
    return [(name, end) for name, end in ends if end is not None and failed(end)]


def _of_pod_reason(reason: str) -> ExitClass | None:
    return ExitClass.PREEMPTED if reason.startswith(OUT_OF) else POD_REASONS.get(reason)


def _disrupted(pod: Mapping[str, Any], exit_class: ExitClass, reason: str, message: str) -> PodEnd:
    """Return the end of a disrupted Pod; it is OOM or a user error if the Pod's own use was the cause."""
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
        message=message if is_memory else f"{message.rstrip()} Request as much in the Pod template",
        container=larger[1],
        role=role,
    )


def classify_container(container: Container, end: Mapping[str, Any]) -> PodEnd:
    """Return the end of a container that nobody ended from outside."""
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
    """Return the advice for a container whose memory dlr does not raise."""
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
