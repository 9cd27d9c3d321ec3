"""One virtual node: its Node object, its sign of life, its Pods, and its power switch."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controller.errors import AlreadyExists, ApiError
from controller.resources import NODES
from localcluster.client.api import STRATEGIC_PATCH, ApiClient
from localcluster.client.clock import utc_now
from localcluster.client.informer import Change, Informer
from localcluster.client.recorder import Recorder
from localcluster.kubelet.addresses import AddressPool
from localcluster.kubelet.container import ContainerRuntime
from localcluster.kubelet.devices import DevicePool
from localcluster.kubelet.heartbeat import keep_lease
from localcluster.kubelet.hosts_files import HostsFiles
from localcluster.kubelet.latencies import Latencies
from localcluster.kubelet.node_objects import (
    NodeShape,
    is_powered,
    is_reported_ready,
    new_node,
    node_status,
)
from localcluster.kubelet.pod_worker import PodWorker
from localcluster.kubelet.services import NodeServices
from localcluster.paths import Home
from localcluster.resource import JSON

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """Resources that all virtual nodes share."""

    client: ApiClient
    recorder: Recorder
    runtime: ContainerRuntime
    home: Home
    addresses: AddressPool
    hosts_files: HostsFiles
    pods: Informer
    nodes: Informer
    version: str


@dataclass
class _Running:
    worker: PodWorker
    task: asyncio.Task[None]


class Kubelet:
    """Level-triggered on its Node (power) and its Pods."""

    def __init__(self, machine: Machine, name: str, shape: NodeShape, first_device: int) -> None:
        self.name = name
        self._machine = machine
        self._shape = shape
        self._services = NodeServices(
            node_name=name,
            client=machine.client,
            recorder=machine.recorder,
            runtime=machine.runtime,
            home=machine.home,
            addresses=machine.addresses,
            hosts_files=machine.hosts_files,
            devices=DevicePool(first_device, shape.gpus),
            allocatable=shape.capacity,
            latencies=Latencies.of_environment(),
        )
        self._running: dict[str, _Running] = {}
        self._powered = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._node_changed = asyncio.Event()
        self.settled = asyncio.Event()
        """The node is as its power switch says."""
        self._cleaning: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled. The informers must be synced."""
        self._machine.nodes.add_handler(self._hear_of_node)
        self._machine.pods.add_handler(self._hear_of_pod)
        self._node_changed.set()
        while True:
            await self._node_changed.wait()
            self._node_changed.clear()
            try:
                await self._converge()
                self.settled.set()
            except ApiError as failure:
                log.warning("node not updated node=%s error=%s", self.name, failure)
                await asyncio.sleep(RETRY_SECONDS)
                self._node_changed.set()

    async def _converge(self) -> None:
        node = self._machine.nodes.get("", self.name)
        if node is None:
            node = await self._register()
        if is_powered(node) and not self._powered:
            await self._power_on(node)
        elif not is_powered(node) and self._powered:
            await self.power_off()
        elif self._powered and not is_reported_ready(node):
            await self._report(node)

    async def _register(self) -> JSON:
        try:
            node = await self._machine.client.create(NODES.path(), new_node(self.name))
        except AlreadyExists:
            node = await self._machine.client.get(NODES.path(name=self.name))
        if self._powered:  # somebody deleted the object of a living node
            self._beat(node)
        return node

    async def _report(self, node: JSON) -> None:
        status = node_status(self.name, self._shape, self._machine.version, node, utc_now())
        path = NODES.path(name=self.name, subresource="status")
        await self._machine.client.patch(path, {"status": status}, kind=STRATEGIC_PATCH)

    # --- power ---

    async def _power_on(self, node: JSON) -> None:
        await self._report(node)
        self._powered = True
        self._beat(node)
        self._machine.recorder.normal(node, "Starting", "Starting kubelet.", host=self.name)
        for pod in self._machine.pods.list():
            self._hear_of_pod(Change.APPLIED, pod)

    def _beat(self, node: JSON) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = asyncio.create_task(keep_lease(self._machine.client, node))

    async def power_off(self) -> None:
        """Everything of the node dies at once, and nobody says so."""
        self._powered = False
        log.info("power off node=%s pods=%d", self.name, len(self._running))
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        running, self._running = list(self._running.values()), {}
        for each in running:
            each.task.cancel()
        await asyncio.gather(*(each.worker.vanish() for each in running))

    # --- what the API says ---

    def _hear_of_node(self, _change: Change, node: JSON) -> None:
        if node["metadata"]["name"] == self.name:
            self._node_changed.set()

    def _hear_of_pod(self, change: Change, pod: JSON) -> None:
        if pod["spec"].get("nodeName") != self.name or not self._powered:
            return
        uid = pod["metadata"]["uid"]
        running = self._running.get(uid)
        if change is Change.DELETED:
            if running is not None:
                running.worker.removed()
            else:
                self._clean(uid)
        elif running is not None:
            running.worker.update(pod)
        elif not _is_settled(pod):
            self._start(uid, pod)

    def _start(self, uid: str, pod: JSON) -> None:
        worker = PodWorker(self._services, pod)
        task = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
        self._running[uid] = _Running(worker, task)
        task.add_done_callback(lambda done: self._ended(uid, done))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        """The worker is done: the object is gone, or the power is."""
        if task.cancelled():
            return
        if (fault := task.exception()) is not None:
            log.error("worker failed uid=%s", uid, exc_info=fault)
        self._running.pop(uid, None)
        self._clean(uid)

    def _clean(self, uid: str) -> None:
        task = asyncio.create_task(asyncio.to_thread(remove_pod_files, self._machine.home, uid))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)


def _is_settled(pod: JSON) -> bool:
    """Finished, and said so: nothing for a kubelet to do, unless its deletion waits for one."""
    finished = (pod.get("status") or {}).get("phase") in FINISHED_PHASES
    return finished and "deletionTimestamp" not in pod["metadata"]


def remove_pod_files(home: Home, uid: str) -> None:
    """Volumes, temporary files and logs of a Pod whose object is gone."""
    logs = home.container_log(uid, "any", 0).parent.parent
    for folder in (home.pods / uid, home.pod_temporary(uid), logs):
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale_files(home: Home, living_uids: set[str]) -> None:
    """Remove the files of Pods that were deleted while no kubelet ran."""
    living = living_uids | {home.pod_temporary(uid).name for uid in living_uids}
    for folder in (home.pods, home.temporary, home.container_log("any", "any", 0).parent.parent.parent):
        with suppress(FileNotFoundError):
            for entry in Path(folder).iterdir():
                if entry.is_dir() and entry.name not in living:
                    shutil.rmtree(entry, ignore_errors=True)
