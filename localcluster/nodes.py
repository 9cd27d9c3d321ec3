"""`python -m localcluster.nodes --home DIR --nodes N`: the control plane's work, and N virtual nodes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.errors import ApiError
from controller.kubeconfig import load_connection
from controller.resources import NODES
from localcluster.apiserver.discovery_paths import VERSION
from localcluster.client.api import ApiClient
from localcluster.client.informer import Informer
from localcluster.client.recorder import Recorder
from localcluster.control_plane import ControlPlane
from localcluster.kubelet.addresses import AddressPool
from localcluster.kubelet.cgroups import open_groups
from localcluster.kubelet.container import ContainerRuntime, Isolation, detect_isolation
from localcluster.kubelet.hosts_files import HostsFiles
from localcluster.kubelet.kubelet import Kubelet, Machine, remove_stale_files
from localcluster.kubelet.node_objects import NodeShape, is_managed
from localcluster.paths import Home, default_root, write_private
from localcluster.resource import JSON

PROCESS = "nodes"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodesOptions:
    home: Home
    nodes: int
    shape: NodeShape
    isolation: Isolation | None
    """None: the best that this host allows."""


def node_names(count: int) -> list[str]:
    return [f"node-{index}" for index in range(count)]


async def run_nodes(options: NodesOptions, stop: asyncio.Event) -> None:
    """Until `stop`. Containers end with this process: their shims see to it."""
    home = options.home
    isolation = options.isolation or detect_isolation(home.run)
    log.info("starting nodes=%d isolation=%s", options.nodes, isolation.value)
    memory = open_groups(home.root)
    async with ApiClient(load_connection(home.kubeconfig)) as client:
        control_plane = ControlPlane(client)
        pods, nodes = control_plane.pods, control_plane.nodes
        kubelet_events = Recorder(client, "kubelet")
        tasks = [asyncio.create_task(each) for each in (*control_plane.work(), kubelet_events.run())]
        kubelets: list[Kubelet] = []
        stopped = asyncio.create_task(stop.wait())
        synced = asyncio.create_task(control_plane.synced())
        await asyncio.wait({*tasks, stopped, synced}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            _raise_first(tasks)
            runtime = ContainerRuntime(isolation, memory)
            runtime.adopt_strays()
            machine = Machine(
                client=client,
                recorder=kubelet_events,
                runtime=runtime,
                home=home,
                addresses=AddressPool(str(home.root), _addresses(pods.list())),
                hosts_files=HostsFiles(),
                pods=pods,
                nodes=nodes,
                version=VERSION["gitVersion"],
            )
            remove_stale_files(home, {pod["metadata"]["uid"] for pod in pods.list()})
            kubelets = _kubelets(machine, options)
            tasks += [asyncio.create_task(kubelet.run()) for kubelet in kubelets]
            tasks.append(asyncio.create_task(_remove_surplus_nodes(client, nodes, options.nodes)))
            tasks.append(asyncio.create_task(_say_ready(kubelets, home.pidfile(PROCESS))))
            await _until_first_fault(tasks, stopped)
        for task in (*tasks, stopped, synced):
            task.cancel()
        await asyncio.gather(*tasks, stopped, synced, return_exceptions=True)
        await asyncio.gather(*(kubelet.power_off() for kubelet in kubelets))
        if memory is not None:
            memory.close()


def _kubelets(machine: Machine, options: NodesOptions) -> list[Kubelet]:
    return [
        Kubelet(machine, name, options.shape, first_device=index * options.shape.gpus)
        for index, name in enumerate(node_names(options.nodes))
    ]


def _addresses(pods: list[JSON]) -> list[str]:
    return [address for pod in pods if (address := (pod.get("status") or {}).get("podIP"))]


async def _until_first_fault(tasks: list[asyncio.Task[None]], stopped: asyncio.Task[Any]) -> None:
    """All but the clean-up run for ever; a fault in one ends the process, which is then started anew."""
    waiting: set[asyncio.Task[Any]] = {*tasks, stopped}
    while not stopped.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        _raise_first(list(done - {stopped}))


def _raise_first(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        if task.done() and (fault := task.exception()) is not None:
            raise fault


async def _say_ready(kubelets: list[Kubelet], pidfile: Path) -> None:
    """The pid file appears when all nodes are up: whoever started us waits for it."""
    await asyncio.gather(*(kubelet.settled.wait() for kubelet in kubelets))
    write_private(pidfile, str(os.getpid()).encode())


async def _remove_surplus_nodes(client: ApiClient, nodes: Informer, count: int) -> None:
    """Virtual nodes of an earlier start with more of them."""
    wanted = set(node_names(count))
    for node in nodes.list():
        metadata = node["metadata"]
        if is_managed(node) and metadata["name"] not in wanted:
            try:
                await client.delete(NODES.path(name=metadata["name"]), uid=metadata["uid"])
            except ApiError as failure:
                log.warning("node not removed node=%s error=%s", metadata["name"], failure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="localcluster.nodes", description=__doc__)
    parser.add_argument("--home", type=Path, default=default_root(), help="the cluster's folder")
    parser.add_argument("--nodes", type=int, default=3, help="how many virtual nodes")
    parser.add_argument("--cpus-per-node", default=str(os.cpu_count() or 1))
    parser.add_argument("--memory-per-node", default="16Gi")
    parser.add_argument("--gpus-per-node", type=int, default=0)
    parser.add_argument(
        "--isolation",
        choices=[isolation.value for isolation in Isolation],
        help="how to keep containers apart (default: the best that this host allows)",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = NodesOptions(
        home=Home(arguments.home.absolute()),
        nodes=arguments.nodes,
        shape=NodeShape(arguments.cpus_per_node, arguments.memory_per_node, arguments.gpus_per_node),
        isolation=Isolation(arguments.isolation) if arguments.isolation else None,
    )
    asyncio.run(_run(options))
    return 0


async def _run(options: NodesOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(stop_signal, stop.set)
    try:
        await run_nodes(options, stop)
    finally:
        options.home.pidfile(PROCESS).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
