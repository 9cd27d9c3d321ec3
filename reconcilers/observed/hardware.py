"""Hardware faults that node agents report in Node conditions, kubelets and drivers of Pods' devices. Pure.

The administrator's agents on a node do not run in a user's container, so their reports count everywhere.
Sources of the names, read in November 2026:

* node-problem-detector: config/kernel-monitor.json and readonly-monitor.json; AKS adds the GPU ones
  (learn.microsoft.com/azure/aks/node-problem-detector)
* NVSentinel: its checks' names are the types, `<type>IsNotHealthy` is the reason (platform-connectors); those
  of DCGM's health watches begin with `Gpu`
* EKS node monitoring agent: docs.aws.amazon.com/eks/latest/userguide/node-health.html
* the kubelet: `allocatedResourcesStatus` of a container, KEP-4680, on by default from Kubernetes 1.36
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.wording import and_more
from crds import names
from crds.actions import Action
from reconcilers.observed.device_taints import DeviceTaint

TRUE, FALSE = "True", "False"
NODE_PROBLEM_DETECTOR = "node-problem-detector"
EKS = "the EKS node monitoring agent"
NVSENTINEL = "NVSentinel"

FAULTS: Mapping[str, tuple[str, Action, str]] = {
    "CperHardwareErrorFatal": (TRUE, Action.REPLACE, NODE_PROBLEM_DETECTOR),
    "KernelDeadlock": (TRUE, Action.REBOOT, NODE_PROBLEM_DETECTOR),
    "ReadonlyFilesystem": (TRUE, Action.REBOOT, NODE_PROBLEM_DETECTOR),
    "XfsShutdown": (TRUE, Action.REBOOT, NODE_PROBLEM_DETECTOR),
    "GPUMissing": (TRUE, Action.REBOOT, NODE_PROBLEM_DETECTOR),
    "NVLinkStatusInactive": (TRUE, Action.RESET_GPU, NODE_PROBLEM_DETECTOR),
    "XIDErrors": (TRUE, Action.RESET_GPU, NODE_PROBLEM_DETECTOR),
    "IBLinkFlapping": (TRUE, Action.LOOK_AT_LINK, NODE_PROBLEM_DETECTOR),
    "AcceleratedHardwareReady": (FALSE, Action.REPLACE, EKS),
    "NetworkingReady": (FALSE, Action.LOOK_AT_LINK, EKS),
    "KernelReady": (FALSE, Action.REBOOT, EKS),
    "StorageReady": (FALSE, Action.REPLACE, EKS),
}
"""Faulty status, action and agent, by condition type. Pressure, restarts of the kubelet and slow clocks are
left out, since they come and go with the node's Pods."""

NVSENTINEL_REASON = "{type}IsNotHealthy"
NVSENTINEL_ACTIONS: Mapping[str, Action] = {
    "GpuNvlinkWatch": Action.RESET_GPU,
    "GpuMemWatch": Action.RESET_GPU,
    "SysLogsXIDError": Action.RESET_GPU,
    "GpuInforomWatch": Action.REPLACE,
    "SysLogsNICDriverError": Action.LOOK_AT_LINK,
}
"""Actions by check; for other checks, NVSentinel itself mostly asks for a reboot."""
NO_FAULTS = frozenset({"GpuDcgmConnectivityFailure", names.NVSENTINEL_CHECK})
"""NVSentinel's conditions that are no hardware faults: its connection to DCGM, and our own verdicts, which
must not confirm themselves."""

NVSENTINEL_CORDONED = "quarantineHealthEventIsCordoned"
"""Annotation of a Node that NVSentinel has cordoned: "True"."""

MAX_FAULT = 160
MOST_DEVICES = 16
"""Most unhealthy devices of a container in the cache."""
DEVICE_UNHEALTHY, DEVICE_TAINTED, NODE_FAULT = "DeviceUnhealthy", "DeviceTainted", "NodeFault"
"""Reasons of a worker's condition `HardwareWell`."""


@dataclass(frozen=True)
class NodeFault:
    """A condition of a Node that is a fault."""

    type: str
    status: str
    message: str
    action: Action
    agent: str
    """The agent that sets the condition."""

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return f"its condition {self.type} is {self.status} by {self.agent}{message}"


def own_fault(node: Mapping[str, Any]) -> NodeFault | None:
    """Return the first fault in the conditions of a raw Node, in the order of their types."""
    conditions = node.get("status", {}).get("conditions") or ()
    return min(filter(None, map(_fault_of, conditions)), key=lambda fault: fault.type, default=None)


def fault_view(node: Mapping[str, Any]) -> object:
    """Return the parts of a Node that say whether its hardware is at fault."""
    fault = own_fault(node)
    return fault and (fault.type, fault.message)


def well_since(node: Mapping[str, Any]) -> Iterator[datetime]:
    """Yield the times since which a raw Node is Ready, and since which agents withdrew their faults."""
    for condition in node.get("status", {}).get("conditions") or ():
        since = condition.get("lastTransitionTime")
        if since and _is_well(condition.get("type", ""), condition.get("status"), condition.get("reason")):
            yield datetime.fromisoformat(since)


def reports_fault(node: Mapping[str, Any]) -> bool:
    """Whether agents report a fault of a raw Node, or its kubelet keeps unhealthy devices from new Pods."""
    status = node.get("status", {})
    usable = status.get("allocatable") or {}
    devices = ((name, count) for name, count in (status.get("capacity") or {}).items() if "/" in name)
    is_less = any(usable.get(name, count) != count for name, count in devices)
    return is_less or own_fault(node) is not None


def is_cordoned_for_our_verdict(node: Mapping[str, Any]) -> bool:
    """Whether NVSentinel has cordoned a raw Node and waits until we withdraw our verdict against it."""
    annotations, conditions = (
        node["metadata"].get("annotations") or {},
        node.get("status", {}).get("conditions"),
    )
    ours = (names.NVSENTINEL_CHECK, TRUE)
    has_ours = any((c.get("type"), c.get("status")) == ours for c in conditions or ())
    return has_ours and annotations.get(NVSENTINEL_CORDONED) == TRUE


def unhealthy_devices(container_status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the unhealthy devices in a container's `allocatedResourcesStatus`, in its form, a few at most.

    Devices are `Unknown` while their plugin does not answer, as during its update: that is no fault.
    """
    found, left = [], MOST_DEVICES
    for resource in container_status.get("allocatedResourcesStatus") or ():
        bad = [each for each in resource.get("resources") or () if each.get("health") == "Unhealthy"][:left]
        left -= len(bad)
        if bad:
            found.append({"name": resource.get("name", ""), "resources": bad})
    return found


def reported_fault(
    pod: Mapping[str, Any], node: Mapping[str, Any] | None, taint: DeviceTaint | None = None
) -> tuple[str, str]:
    """Return the reason, and a sentence with the device and the reporter; both empty without a fault.

    Args:
        pod: a training Pod that lives.
        node: the raw Node that it runs on, if it is in the cache.
        taint: a taint of one of the Pod's devices that ends Pods.
    """
    where = pod.get("spec", {}).get("nodeName") or "its node"
    devices = list(_named_devices(pod.get("status", {}).get("containerStatuses") or ()))
    if devices:
        more = and_more(len(devices) - 1, "device")
        return DEVICE_UNHEALTHY, f"the kubelet of {where} reports {devices[0]}{more}"
    if taint is not None:
        return DEVICE_TAINTED, f"{where} has the {taint}"
    fault = own_fault(node) if node is not None else None
    return (NODE_FAULT, f"node {where}: {fault}") if fault is not None else ("", "")


def _named_devices(statuses: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for status in statuses:
        for resource in unhealthy_devices(status):
            for device in resource["resources"]:
                why = " ".join(str(device.get("message") or "").split())[:MAX_FAULT]
                name = f"device {device.get('resourceID', '?')} of {resource['name']} as Unhealthy"
                yield f"{name}: {why}" if why else name


def _is_well(type_: str, status: str | None, reason: str | None) -> bool:
    if type_ in FAULTS:
        return status == (FALSE if FAULTS[type_][0] == TRUE else TRUE)
    if type_ == "Ready":
        return status == TRUE
    return status == FALSE and reason == f"{type_}IsHealthy" and type_ not in NO_FAULTS


def _fault_of(condition: Mapping[str, Any]) -> NodeFault | None:
    """Return the fault that a condition states; None without one."""
    type_, status = str(condition.get("type", "")), str(condition.get("status"))
    message = " ".join(str(condition.get("message") or "").split())[:MAX_FAULT]
    if type_ in FAULTS:
        bad, action, agent = FAULTS[type_]
        return NodeFault(type_, status, message, action, agent) if status == bad else None
    is_nvsentinels = condition.get("reason") == NVSENTINEL_REASON.format(type=type_)
    if status != TRUE or not is_nvsentinels or type_ in NO_FAULTS:
        return None
    return NodeFault(type_, status, message, NVSENTINEL_ACTIONS.get(type_, Action.REBOOT), NVSENTINEL)
