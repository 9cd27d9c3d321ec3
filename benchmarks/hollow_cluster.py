"""The cluster of hollow benchmarks: the embedded API server and our controller as processes, or any cluster.

On another cluster they need its administrator's rights. They make a namespace of their own, and the CRDs if
those are not there, and take away what they made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.hollow_agents import STEP_TIMEOUT_SECONDS, Writes, now
from controller.client import Client
from controller.errors import AlreadyExists, ApiError, NotFound
from controller.kubeconfig import load_connection
from controller.resources import CRDS, NAMESPACES, Resource
from localcluster.paths import Home
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS

CRD_FILES = sorted((Path(__file__).parent.parent / "crds" / "yaml").glob("*.yaml"))
START_TIMEOUT_SECONDS = 60.0
CALL_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Spent:
    """What it took to get somewhere."""

    seconds: float
    agent_writes: int
    controller_writes: int
    kubelet_writes: int
    controller_cpu_seconds: float
    server_cpu_seconds: float
    """0 where the API server is not ours to look at."""


def between(start: Spent, end: Spent) -> Spent:
    return Spent(*(b - a for a, b in zip(astuple(start), astuple(end), strict=True)))


class Cluster:
    """An API server, a controller, and what that has used so far."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.namespace = "default"
        self.metrics_url = ""
        self.kubeconfig: Path | str | None = home.kubeconfig
        self.context: str | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._server = self._spawn("apiserver", "localcluster.apiserver", "--port", str(_free_port()))
        await _eventually(self._answers, "the API server")
        async with self.client() as client:
            await install_crds(client)
        await self._start_controller()

    def stop(self) -> None:
        for process in (self._controller, self._server):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        connection = load_connection(self.kubeconfig, self.context)
        async with Client(connection, call_timeout_seconds=CALL_TIMEOUT_SECONDS) as client:
            yield client

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(self.metrics_url) as response:
            return await response.text()

    async def used(self) -> tuple[int, float]:
        """Writes and CPU seconds of the controller.

        All writes but the renewals of its own Lease, which are PUTs, as nothing else is.

        Raises:
            ChildProcessError: it has ended, and with which last words.
        """
        try:
            text = await self.metrics()
        except aiohttp.ClientConnectionError:
            await self._wait_for_end()
            raise
        writes = cpu = 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "rest_client_requests_total":
                    writes += sample.value * (sample.labels["method"] in ("POST", "PATCH", "DELETE"))
                elif sample.name == "process_cpu_seconds_total":
                    cpu = sample.value
        return int(writes), cpu

    def check_alive(self) -> None:
        """Raises ChildProcessError if the controller has ended, as it does when the API server hangs."""
        if self._controller is not None and self._controller.poll() is not None:
            end = self.home.process_log("controller").read_text().splitlines()[-1:]
            raise ChildProcessError(f"the controller has ended: {''.join(end)}")

    async def _wait_for_end(self) -> None:
        """Wait for the end of a controller whose servers have stopped; raise as `check_alive` does."""
        if self._controller is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._controller.wait, START_TIMEOUT_SECONDS)
        self.check_alive()

    def server_cpu_seconds(self) -> float:
        return 0.0 if self._server is None else cpu_seconds(self._server.pid)

    async def _start_controller(self, *options: str) -> None:
        port = _free_port()
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"
        ports = ["--metrics-port", str(port), "--health-port", "0"]
        listen = ["--listen-address", "127.0.0.1", "--no-metrics-auth", "--log-level", "warning"]
        self._controller = self._spawn("controller", "dlr.cli", "controller", *listen, *ports, *options)
        await _eventually(self._leads, "the controller")

    def _spawn(self, log: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        self.home.create()
        environment = {**os.environ, "DLR_HOME": str(self.home.root)}
        if self.kubeconfig is not None:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        with self.home.process_log(log).open("ab") as output:
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    async def _answers(self) -> None:
        async with self.client() as client:
            await client.version()

    async def _leads(self) -> None:
        self.check_alive()
        if f'leader_election_master_status{{name="dlr-controller"}} {1.0}' not in await self.metrics():
            raise ConnectionError("does not lead yet")


class OtherCluster(Cluster):
    """Any cluster that a kubeconfig names. Its controller is one of ours that minds the namespace alone.

    Or, with `metrics_url`, the one that runs there already, whose figures are read from that URL.
    """

    def __init__(
        self, home: Home, kubeconfig: str | None, context: str | None, namespace: str, metrics_url: str
    ) -> None:
        super().__init__(home)
        self.namespace, self.metrics_url = namespace, metrics_url
        self.kubeconfig, self.context = kubeconfig, context
        self._made_crds: list[str] = []
        self._made_namespace = False

    async def start(self) -> None:
        async with self.client() as client:
            self._made_crds = await install_crds(client)
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            await client.create(NAMESPACES, body)
            self._made_namespace = True
        if not self.metrics_url:
            context = [] if self.context is None else ["--context", self.context]
            own = ["--namespace", self.namespace, "--lease-namespace", self.namespace, "--cordon", "off"]
            await self._start_controller(*own, *context)

    async def leave(self) -> None:
        """Take away what was made, and wait until it is gone."""
        async with self.client() as client:
            if self._made_namespace:
                await client.delete(NAMESPACES, self.namespace)
                await _until_gone(client, NAMESPACES, self.namespace)
            for name in self._made_crds:
                await client.delete(CRDS, name)
                await _until_gone(client, CRDS, name)


@contextlib.asynccontextmanager
async def cluster_at(
    kubeconfig: str | None, context: str | None, namespace: str, metrics_url: str
) -> AsyncIterator[Cluster]:
    """The cluster that is meant; without a kubeconfig or a context, the embedded one."""
    with tempfile.TemporaryDirectory(prefix="hollow-") as folder:
        home = Home(Path(folder) / "home")
        if kubeconfig is None and context is None:
            embedded = Cluster(home)
            try:
                await embedded.start()
                yield embedded
            finally:
                embedded.stop()
            return
        other = OtherCluster(home, kubeconfig, context, namespace, metrics_url)
        try:
            await other.start()
            yield other
        finally:
            try:
                await other.leave()
            finally:
                other.stop()


class Meter:
    def __init__(self, cluster: Cluster, agents: Writes, kubelet: Writes) -> None:
        self._cluster, self._agents, self._kubelet = cluster, agents, kubelet

    async def read(self) -> Spent:
        controller_writes, controller_cpu = await self._cluster.used()
        return Spent(
            seconds=now(),
            agent_writes=self._agents.count,
            controller_writes=controller_writes,
            kubelet_writes=self._kubelet.count,
            controller_cpu_seconds=controller_cpu,
            server_cpu_seconds=self._cluster.server_cpu_seconds(),
        )

    async def quiet(self, seconds: float) -> Spent:
        """The figures once the controller has written nothing for so long."""
        async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
            before = await self.read()
            while True:
                await asyncio.sleep(seconds)
                after = await self.read()
                if after.controller_writes == before.controller_writes:
                    return after
                before = after


async def install_crds(client: Client) -> list[str]:
    """Names of those that were not there."""
    made = []
    for file in CRD_FILES:
        crd = yaml.safe_load(file.read_text())
        with contextlib.suppress(AlreadyExists):
            await client.create(CRDS, crd)
            made.append(crd["metadata"]["name"])
    await _eventually(lambda: client.list(ELASTICJOBS), "ElasticJobs")
    await _eventually(lambda: client.list(ELASTICWORKERS), "ElasticWorkers")
    return made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - many tasks' doing; the clocks do not hang on it
            await asyncio.sleep(0.05)


async def until_none(client: Client, namespace: str, *resources: Resource) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        for resource in resources:
            while (await client.list(resource, namespace))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run it beside the block, which ends with what it raises."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(coroutine)
        yield
        task.cancel()


async def _until_gone(client: Client, resource: Resource, name: str) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        while True:
            try:
                await client.get(resource, name)
            except NotFound:
                return
            await asyncio.sleep(0.5)


async def _eventually(call: Callable[[], Awaitable[object]], what: str) -> None:
    """Until `call` does not fail any more."""
    deadline = now() + START_TIMEOUT_SECONDS
    while True:
        try:
            await call()
            return
        except (ApiError, aiohttp.ClientError, ConnectionError) as error:
            if now() > deadline:
                raise TimeoutError(f"{what} did not come up: {error}") from error
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
