"""A real API server in a process of its own, the real controllers, and hollow Pods and agents.

Nobody runs the Pods: the tests play kubelet and agent by patching statuses over HTTP, as those do.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import crds
from controller.client import AsyncClient
from controller.errors import NotFound, Refused
from controller.kubeconfig import load_connection
from controller.manager import Manager, ManagerOptions
from controller.resources import CRDS, LEASES, PODS
from controller.serving.servers import Listen
from crds.agent_report import PROTOCOL
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import WATCHED_BY_LABEL, add_all
from tests.reconcilers.build import in_lists

PATIENCE_SECONDS = 300.0
"""Also for each answer of the API server, which may be late."""
NAMESPACE = "default"


class ApiServer:
    """The embedded API server as a process, so that it can be stopped like one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, "-m", "localcluster.apiserver", "--home", str(home), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "listening" in self.process.stdout.readline()

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Hollow:
    """Plays users, kubelets and agents over one client."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def until(self, what: str, check: Callable[[], Any], patience: float = PATIENCE_SECONDS) -> Any:
        """What `check` returns once it is truthy."""
        deadline = time.monotonic() + patience
        while True:
            try:
                found = await check()
            except NotFound:
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"waited {patience:g} s for: {what}"
            await asyncio.sleep(0.02)

    async def submit(self, name: str, replicas: int = 2, **spec: Any) -> None:
        worker = {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}},
        }
        worker |= spec.pop("worker", {})
        await self.client.create(
            ELASTICJOBS,
            {
                "apiVersion": ELASTICJOBS.api_version,
                "kind": "ElasticJob",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"replicaSpecs": {"worker": worker}} | spec,
            },
        )

    async def job(self, name: str) -> dict[str, Any]:
        return await self.client.get(ELASTICJOBS, name, NAMESPACE)

    async def status(self, name: str) -> dict[str, Any]:
        return (await self.job(name)).get("status", {})

    async def world(self, name: str) -> dict[str, Any]:
        return in_lists((await self.status(name)).get("rendezvous", {}))

    async def pods(self, name: str) -> list[str]:
        listed = await self.client.list(
            PODS, NAMESPACE, label_selector=f"elastic.iml.github.io/job-name={name}"
        )
        return sorted(p["metadata"]["name"] for p in listed["items"])

    async def pod_status(self, pod: str, status: dict[str, Any]) -> None:
        await self.client.patch(PODS, pod, {"status": status}, NAMESPACE, subresource="status")

    async def delete_pod(self, pod: str) -> None:
        await self.client.delete(PODS, pod, NAMESPACE, grace_period_seconds=0)

    async def run_agent(self, worker: str, incarnation: int = 1, state: str = "Ready", **report: Any) -> None:
        """The Pod runs, and its agent says so."""
        name = f"{worker}-{incarnation}"
        await self.until(f"Pod {name}", lambda: self.client.get(PODS, name, NAMESPACE))
        pod = await self.client.get(PODS, name, NAMESPACE)
        if pod["status"].get("phase") != "Running":
            started = self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            await self.pod_status(name, {"phase": "Running", "startTime": started})
        fields = {
            "incarnation": incarnation,
            "podUid": pod["metadata"]["uid"],
            "address": "127.0.0.9",
            "storePort": 29_400,
            "localWorldSize": 1,
            "protocol": PROTOCOL,
            "observedRound": 0,
            "state": state,
            "since": self.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self.say(worker, fields | report)

    async def say(self, worker: str, report: dict[str, Any]) -> None:
        patch = {"status": {"agent": report}}
        await self.client.patch(ELASTICWORKERS, worker, patch, NAMESPACE, subresource="status")

    async def beat(self, worker: str, incarnation: int = 1) -> None:
        now = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        patch = {"spec": {"renewTime": now, "holderIdentity": f"{worker}-{incarnation}"}}
        await self.client.patch(LEASES, worker, patch, NAMESPACE)

    async def formed(self, name: str, round_: int) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            world = await self.world(name)
            return world if (world.get("phase"), world.get("round")) == ("Formed", round_) else None

        return await self.until(f"round {round_} of {name}", check)

    async def phase(self, name: str, phase: str) -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if status.get("phase") == phase else None

        return await self.until(f"{name} {phase}", check)

    async def train(self, name: str, replicas: int = 2, **spec: Any) -> None:
        """Submit, and let everyone reach Running in round 1."""
        await self.submit(name, replicas, **spec)
        for index in range(replicas):
            await self.run_agent(f"{name}-worker-{index}")
        await self.formed(name, 1)
        for index in range(replicas):
            await self.say(f"{name}-worker-{index}", {"state": "Running", "observedRound": 1})


@asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[Hollow]:
    async with _client_of(server) as client:
        yield Hollow(client)


def _client_of(server: ApiServer) -> AsyncClient:
    return AsyncClient(load_connection(server.kubeconfig), call_timeout_seconds=PATIENCE_SECONDS)


async def install_crds(hollow: Hollow) -> None:
    for manifest in crds.manifests():
        await hollow.client.create(CRDS, manifest)
    await hollow.until("the CRDs", lambda: _served(hollow.client))


async def _served(client: AsyncClient) -> bool:
    try:
        await client.list(ELASTICJOBS, NAMESPACE)
    except (NotFound, Refused):
        return False
    return True


@asynccontextmanager
async def controllers(server: ApiServer) -> AsyncIterator[None]:
    """The manager with all reconcilers, in this process."""
    async with _client_of(server) as client:
        anywhere = Listen(address="127.0.0.1", health_port=0, metrics_port=0)
        options = ManagerOptions(
            listen=anywhere,
            leader_election=False,
            lease_namespace=NAMESPACE,
            label_selectors=WATCHED_BY_LABEL,
        )
        manager, stop = Manager(client, options), asyncio.Event()
        add_all(manager)
        running = asyncio.create_task(manager.run(stop))
        try:
            yield
        finally:
            stop.set()
            await running
