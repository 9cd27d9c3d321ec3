"""The control plane beside the API server: scheduling, node lifecycle, the status of PodGroups."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from controller.resources import LEASES, NODES, PODS
from localcluster.client.api import POD_GROUPS, ApiClient
from localcluster.client.informer import Informer
from localcluster.client.recorder import Recorder
from localcluster.kubelet.heartbeat import LEASE_NAMESPACE
from localcluster.node_lifecycle import NodeLifecycle
from localcluster.scheduler import pod_groups
from localcluster.scheduler.pod_groups import PodGroupController
from localcluster.scheduler.scheduler import SCHEDULER_NAME, Scheduler


class ControlPlane:
    """One process has it once; the kubelets share its copies of Pods and Nodes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.pods, self.nodes = Informer(client, PODS), Informer(client, NODES)
        self._leases = Informer(client, LEASES, LEASE_NAMESPACE)
        self._pod_groups = Informer(client, POD_GROUPS)
        self._scheduler_events = Recorder(client, SCHEDULER_NAME)
        self._lifecycle_events = Recorder(client, "node-controller")
        self._scheduler = Scheduler(client, self.pods, self.nodes, self._pod_groups, self._scheduler_events)
        self._lifecycle = NodeLifecycle(client, self._lifecycle_events, self.nodes, self.pods, self._leases)
        self._pod_group_controller = PodGroupController(client, self.pods, self._pod_groups)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """All of it, each for ever; the process that asked for it bounds it."""
        return [
            *(informer.run() for informer in (self.pods, self.nodes, self._leases)),
            self._follow_pod_groups(),
            *(recorder.run() for recorder in (self._scheduler_events, self._lifecycle_events)),
            self._scheduler.run(),
            self._lifecycle.run(),
            self._pod_group_controller.run(),
        ]

    async def synced(self) -> None:
        """Until Pods, Nodes and PodGroups are known."""
        informers = (self.pods, self.nodes, self._pod_groups)
        await asyncio.gather(*(informer.synced.wait() for informer in informers))

    async def _follow_pod_groups(self) -> None:
        await pod_groups.install(self._client)
        await self._pod_groups.run()
