"""What others who look after a node say of it: conditions that agents of the node's own set. Pure.

These agents run on the node on behalf of whoever runs the cluster, not in a user's container. So their word
counts where that of a user's namespace does not. Sources of the names, read in November 2026:

* node-problem-detector: config/kernel-monitor.json and readonly-monitor.json; AKS adds the GPU ones
  (learn.microsoft.com/azure/aks/node-problem-detector)
* NVSentinel: its checks' names are the types, `<type>IsNotHealthy` is the reason (platform-connectors)
* EKS node monitoring agent: docs.aws.amazon.com/eks/latest/userguide/node-health.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crds.findings import Action

TRUE, FALSE = "True", "False"

FAULTS: Mapping[str, tuple[str, Action]] = {
    "CperHardwareErrorFatal": (TRUE, Action.REPLACE),
    "KernelDeadlock": (TRUE, Action.REBOOT),
    "ReadonlyFilesystem": (TRUE, Action.REBOOT),
    "XfsShutdown": (TRUE, Action.REBOOT),
    "GPUMissing": (TRUE, Action.REBOOT),
    "NVLinkStatusInactive": (TRUE, Action.RESET_GPU),
    "XIDErrors": (TRUE, Action.RESET_GPU),
    "IBLinkFlapping": (TRUE, Action.LOOK_AT_LINK),
    "AcceleratedHardwareReady": (FALSE, Action.REPLACE),
    "NetworkingReady": (FALSE, Action.LOOK_AT_LINK),
    "KernelReady": (FALSE, Action.REBOOT),
    "StorageReady": (FALSE, Action.REPLACE),
}
"""By type: the status that tells of a fault, and what to do about it. Pressure, restarts of the kubelet and
clocks that are slowed down are left out: they come and go with what runs there."""

NVSENTINEL_REASON = "{type}IsNotHealthy"
NVSENTINEL_ACTIONS: Mapping[str, Action] = {
    "GpuNvlinkWatch": Action.RESET_GPU,
    "GpuMemWatch": Action.RESET_GPU,
    "SysLogsXIDError": Action.RESET_GPU,
    "GpuInforomWatch": Action.REPLACE,
    "SysLogsNICDriverError": Action.LOOK_AT_LINK,
}
"""Of its other checks a reboot is what it mostly asks for itself."""

MAX_MESSAGE = 160


@dataclass(frozen=True)
class NodeFault:
    """A condition of a Node that tells of a fault."""

    type: str
    status: str
    message: str
    action: Action

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return f"its condition {self.type} is {self.status}{said}"


def own_fault(node: Mapping[str, Any]) -> NodeFault | None:
    """The first fault that the conditions of a raw Node tell of, by the names of their types."""
    conditions = node.get("status", {}).get("conditions") or ()
    found = sorted((c for c in conditions if _action(c) is not None), key=lambda c: str(c["type"]))
    if not found:
        return None
    first = found[0]
    action = _action(first)
    assert action is not None
    message = " ".join(str(first.get("message") or "").split())[:MAX_MESSAGE]
    return NodeFault(first["type"], first["status"], message, action)


def is_ready(node: Mapping[str, Any] | None) -> bool:
    """Whether the kubelet of a raw Node reports, and says that it can run Pods."""
    conditions = (node or {}).get("status", {}).get("conditions") or ()
    return any((c.get("type"), c.get("status")) == ("Ready", TRUE) for c in conditions)


def _action(condition: Mapping[str, Any]) -> Action | None:
    """What to do about a condition; None if it tells of no fault."""
    type_, status = condition.get("type", ""), condition.get("status")
    if type_ in FAULTS:
        bad, action = FAULTS[type_]
        return action if status == bad else None
    if status == TRUE and condition.get("reason") == NVSENTINEL_REASON.format(type=type_):
        return NVSENTINEL_ACTIONS.get(type_, Action.REBOOT)
    return None
