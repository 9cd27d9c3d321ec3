"""The Node object of a virtual node: pure."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime

from localcluster.client.clock import timestamp
from localcluster.kubelet.devices import GPU
from localcluster.kubelet.status import HOST_ADDRESS
from localcluster.resource import JSON

POWER_ANNOTATION = "localcluster.dlr.dev/power"
MANAGED_LABEL = "localcluster.dlr.dev/virtual"
PODS_PER_NODE = 110
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class NodeShape:
    """Capacity of each virtual node. All nodes share this one machine, so the sum may exceed it."""

    cpus: str
    memory: str
    gpus: int

    def capacity(self) -> JSON:
        counted = {"cpu": self.cpus, "memory": self.memory, "pods": str(PODS_PER_NODE)}
        return counted | ({GPU: str(self.gpus)} if self.gpus else {})


def new_node(name: str) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": base_labels(name)},
        "spec": {"providerID": f"localcluster://{name}"},
    }


def base_labels(name: str) -> dict[str, str]:
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": architecture,
        MANAGED_LABEL: "true",
    }


def is_managed(node: JSON) -> bool:
    return (node["metadata"].get("labels") or {}).get(MANAGED_LABEL) == "true"


def is_powered(node: JSON) -> bool:
    return (node["metadata"].get("annotations") or {}).get(POWER_ANNOTATION) != "off"


def node_status(name: str, shape: NodeShape, version: str, before: JSON | None, now: datetime) -> JSON:
    """Return the status of a node whose kubelet lives."""
    capacity = shape.capacity()
    system = platform.uname()
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": HOST_ADDRESS},
            {"type": "Hostname", "address": name},
        ],
        "conditions": _conditions(before, now),
        "nodeInfo": {
            "architecture": ARCHITECTURES.get(system.machine, system.machine),
            "bootID": "",
            "containerRuntimeVersion": "process://1",
            "kernelVersion": system.release,
            "kubeProxyVersion": "",
            "kubeletVersion": version,
            "machineID": name,
            "operatingSystem": system.system.lower(),
            "osImage": os_name(),
            "systemUUID": name,
        },
    }


def os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return os.uname().sysname


def _conditions(before: JSON | None, now: datetime) -> list[JSON]:
    known = {c["type"]: c for c in ((before or {}).get("status") or {}).get("conditions") or ()}
    sound = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    }
    conditions = []
    for kind, (status, reason, message) in sound.items():
        earlier = known.get(kind)
        same = earlier is not None and earlier["status"] == status
        since = earlier["lastTransitionTime"] if earlier is not None and same else timestamp(now)
        conditions.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": since,
            }
        )
    return conditions


def is_reported_ready(node: JSON) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
