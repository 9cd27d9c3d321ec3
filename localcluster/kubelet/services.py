"""Services of a virtual node for the lives of its Pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localcluster.client.api import ApiClient
from localcluster.client.recorder import Recorder
from localcluster.kubelet.addresses import AddressPool
from localcluster.kubelet.container import ContainerRuntime
from localcluster.kubelet.devices import DevicePool
from localcluster.kubelet.hosts_files import HostsFiles
from localcluster.kubelet.latencies import Latencies
from localcluster.paths import Home
from localcluster.resource import JSON


@dataclass(frozen=True)
class NodeServices:
    node_name: str
    client: ApiClient
    recorder: Recorder
    runtime: ContainerRuntime
    home: Home
    addresses: AddressPool
    hosts_files: HostsFiles
    devices: DevicePool
    allocatable: Callable[[], JSON]
    latencies: Latencies

    def normal(self, pod: JSON, reason: str, message: str, container: str = "") -> None:
        self.recorder.normal(pod, reason, message, host=self.node_name, field=_field(container))

    def warning(self, pod: JSON, reason: str, message: str, container: str = "") -> None:
        self.recorder.warning(pod, reason, message, host=self.node_name, field=_field(container))


def _field(container: str) -> str:
    return f"spec.containers{{{container}}}" if container else ""
