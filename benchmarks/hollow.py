"""How fast a world reaches many agents, and what it costs the API server: 200 agents without torch.

The embedded API server and the real controller run as processes of their own. Pods go to no node: a hollow
kubelet in this process calls each Running as soon as it exists, and a hollow agent, a few coroutines, plays
the agent's part of the protocol for it: watch the one ElasticJob, report to `status.agent`, renew the Lease.
All but one agent report Ready; when all is quiet the last one does, and the clock runs from the server's
answer to that until every agent has seen the world it is in. Then single agents report a failure, and the
clock runs until every agent has seen the next round.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import date
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.hollow_agents import (
    NAMESPACE,
    STEP_TIMEOUT_SECONDS,
    HollowNodes,
    Sightings,
    Writes,
    now,
)
from controller.cache import Cache
from controller.client import Client
from controller.connection import load_connection
from controller.errors import ClientError, NotFound
from controller.resources import CRDS, ELASTICJOBS, ELASTICWORKERS, PODS, Object, Resource
from crds import names
from localcluster.paths import Home

REPORT = Path(__file__).parent.parent / "docs" / "hollow-agents.md"
CRD_FILES = sorted((Path(__file__).parent.parent / "crds" / "yaml").glob("*.yaml"))
JOB = "hollow"
QUIET_SECONDS = 2.0
STEADY_SECONDS = 30.0
START_TIMEOUT_SECONDS = 60.0
LEAST_HEARTBEAT_SECONDS = 10.0
MOST_HEARTBEATS_A_SECOND = 100.0


@dataclass(frozen=True)
class Spent:
    """What it took to get somewhere."""

    seconds: float
    agent_writes: int
    controller_writes: int
    kubelet_writes: int
    controller_cpu_seconds: float
    server_cpu_seconds: float


class Cluster:
    """The two processes, and what they have used so far."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._metrics_port = _free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._controller: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        server_port = str(_free_port())
        self._server = self._spawn("apiserver", "localcluster.apiserver", "--port", server_port)
        await _eventually(self._answers, "the API server")
        async with self.client() as client:
            for file in CRD_FILES:
                await client.create(CRDS, yaml.safe_load(file.read_text()))
            await _eventually(lambda: client.list(ELASTICJOBS), "ElasticJobs")
            await _eventually(lambda: client.list(ELASTICWORKERS), "ElasticWorkers")
        ports = ["--metrics-port", str(self._metrics_port), "--health-port", "0", "--grpc-health-port", "0"]
        options = ["--listen-address", "127.0.0.1", "--log-level", "warning", *ports]
        self._controller = self._spawn("controller", "dlr.cli", "controller", *options)
        await _eventually(self._leads, "the controller")

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
        async with Client(await load_connection(self.home.kubeconfig), call_timeout_seconds=60) as client:
            yield client

    async def controller_writes(self) -> int:
        """All but the renewals of its own Lease, which are PUTs and nothing else is."""
        families = text_string_to_metric_families(await self.metrics())
        samples = [s for family in families for s in family.samples if s.name == "rest_client_requests_total"]
        return int(sum(s.value for s in samples if s.labels["method"] in ("POST", "PATCH", "DELETE")))

    def check_alive(self) -> None:
        """Raises ChildProcessError if the controller has ended, as it does when the API server hangs."""
        assert self._controller
        if self._controller.poll() is not None:
            end = self.home.process_log("controller").read_text().splitlines()[-1:]
            raise ChildProcessError(f"the controller has ended: {''.join(end)}")

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the controller and of the API server."""
        assert self._controller and self._server
        return _cpu_seconds(self._controller.pid), _cpu_seconds(self._server.pid)

    def _spawn(self, log: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        self.home.create()
        with self.home.process_log(log).open("ab") as output:
            environment = {
                **os.environ,
                "DLR_HOME": str(self.home.root),
                "KUBECONFIG": str(self.home.kubeconfig),
            }
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    async def _answers(self) -> None:
        async with self.client() as client:
            await client.version()

    async def _leads(self) -> None:
        if f'leader_election_master_status{{name="dlr-controller"}} {1.0}' not in await self.metrics():
            raise ConnectionError("does not lead yet")

    async def metrics(self) -> str:
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()


class Meter:
    def __init__(self, cluster: Cluster, agents: Writes, kubelet: Writes) -> None:
        self._cluster, self._agents, self._kubelet = cluster, agents, kubelet

    async def read(self) -> Spent:
        controller_cpu, server_cpu = self._cluster.cpu_seconds()
        return Spent(
            seconds=now(),
            agent_writes=self._agents.count,
            controller_writes=await self._cluster.controller_writes(),
            kubelet_writes=self._kubelet.count,
            controller_cpu_seconds=controller_cpu,
            server_cpu_seconds=server_cpu,
        )


def between(start: Spent, end: Spent) -> Spent:
    return Spent(*(b - a for a, b in zip(astuple(start), astuple(end), strict=True)))


@dataclass(frozen=True)
class Trial:
    """One job from its creation on."""

    joining: Spent
    """From `create` until all but one agent are Ready, and all is quiet."""
    forming: Spent
    """From the last Ready until every agent has reported Running, and all is quiet."""
    seen_seconds: list[float]
    """From the answer to the last Ready until each agent saw the world."""
    steady: Spent
    reforming_seconds: list[float]
    """From the answer to each failure report until the last agent saw the next round."""
    job_bytes: int


async def run_trial(cluster: Cluster, agents: int, reforms: int) -> Trial:
    heartbeat_seconds = max(LEAST_HEARTBEAT_SECONDS, agents / MOST_HEARTBEATS_A_SECOND)
    async with (
        cluster.client() as agent_client,
        cluster.client() as kubelet_client,
        cluster.client() as client,
    ):
        meter = Meter(cluster, Writes(agent_client), Writes(kubelet_client))
        sightings = Sightings(agents)
        nodes = HollowNodes(
            kubelet_client,
            agent_client,
            sightings,
            heartbeat_seconds=heartbeat_seconds,
            held_back=agents - 1,
        )
        cache = Cache(client, label_selectors={PODS: f"{names.LABEL_JOB}={JOB}"})
        cache.add_handler(PODS, nodes.handle)
        async with background(cache.run()), background(nodes.run()):
            await cache.wait_synced(START_TIMEOUT_SECONDS)
            trial = await _measure(client, meter, nodes, sightings, agents, reforms)
        await client.delete(ELASTICJOBS, JOB, NAMESPACE)
        await _until_none(client, ELASTICWORKERS, PODS)
    return trial


async def _measure(
    client: Client, meter: Meter, nodes: HollowNodes, sightings: Sightings, agents: int, reforms: int
) -> Trial:
    started = await meter.read()
    await client.create(ELASTICJOBS, job_of(JOB, agents))
    await until(lambda: nodes.ready == agents - 1 and len(nodes.agents) == agents)
    await asyncio.sleep(QUIET_SECONDS)
    joined = await meter.read()
    await nodes.agents[agents - 1].report_ready()
    last_ready = now()
    seen = await sightings.by_all(1)
    await until(lambda: all(agent.running.is_set() for agent in nodes.agents.values()))
    await asyncio.sleep(QUIET_SECONDS)
    formed = await meter.read()
    await asyncio.sleep(STEADY_SECONDS)
    steady = await meter.read()
    reforming = []
    for round_ in range(2, 2 + reforms):
        await random.choice(list(nodes.agents.values())).report_failure()
        failed = now()
        reforming.append((await sightings.by_all(round_))[-1] - failed)
        await until(lambda: all(agent.running.is_set() for agent in nodes.agents.values()))
        await asyncio.sleep(QUIET_SECONDS)
    job = await client.get(ELASTICJOBS, JOB, NAMESPACE)
    return Trial(
        joining=between(started, joined),
        forming=between(joined, formed),
        seen_seconds=[moment - last_ready for moment in seen],
        steady=between(formed, steady),
        reforming_seconds=reforming,
        job_bytes=len(str(job)),
    )


def job_of(name: str, agents: int) -> Object:
    container = {"name": "main", "image": "hollow", "command": ["true"]}
    worker = {
        "replicas": agents,
        "restartCount": 1_000,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicaSpecs": {names.WORKER: worker}},
    }


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - many tasks' doing; the clocks do not hang on it
            await asyncio.sleep(0.05)


async def _until_none(client: Client, *resources: Resource) -> None:
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        for resource in resources:
            while (await client.list(resource, NAMESPACE))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.5)


async def _eventually(call: Callable[[], Awaitable[object]], what: str) -> None:
    """Until `call` does not fail any more."""
    deadline = now() + START_TIMEOUT_SECONDS
    while True:
        try:
            await call()
            return
        except (ClientError, NotFound, aiohttp.ClientError, ConnectionError) as error:
            if now() > deadline:
                raise TimeoutError(f"{what} did not come up: {error}") from error
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def background(coroutine: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(agents: int, trials: Sequence[Trial]) -> str:
    seen = [trial.seen_seconds for trial in trials]
    reforming = [seconds for trial in trials for seconds in trial.reforming_seconds]
    return f"""| from … until … | median | least | most |
|---|---|---|---|
| the last Ready → the first agent sees the world | {_three([s[0] for s in seen])} |
| the last Ready → half of the agents see it | {_three([statistics.median(s) for s in seen])} |
| the last Ready → all {agents} agents see it | {_three([s[-1] for s in seen])} |
| one agent's failure → all {agents} agents see the next round | {_three(reforming)} |

Seconds, over {len(trials)} jobs and {len(reforming)} failures.

| API writes per worker | agent | controller | hollow kubelet |
|---|---|---|---|
| joining: from `kubectl apply` until all but one are Ready | {_writes([t.joining for t in trials], agents)} |
| forming: the last Ready until all report Running | {_writes([t.forming for t in trials], agents)} |
| steady training, per minute | {_writes([_per_minute(t.steady) for t in trials], agents)} |

| used meanwhile | wall seconds | controller CPU seconds | API server CPU seconds |
|---|---|---|---|
| joining | {_used([t.joining for t in trials])} |
| forming | {_used([t.forming for t in trials])} |
| steady training, per minute | {_used([_per_minute(t.steady) for t in trials])} |"""


def _three(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f}"


def _writes(spent: Sequence[Spent], agents: int) -> str:
    columns = zip(*((s.agent_writes, s.controller_writes, s.kubelet_writes) for s in spent), strict=True)
    return " | ".join(f"{statistics.median(column) / agents:.2f}" for column in columns)


def _used(spent: Sequence[Spent]) -> str:
    columns = zip(*((s.seconds, s.controller_cpu_seconds, s.server_cpu_seconds) for s in spent), strict=True)
    return " | ".join(f"{statistics.median(column):.1f}" for column in columns)


def _per_minute(spent: Spent) -> Spent:
    return Spent(*(value * 60 / spent.seconds for value in astuple(spent)))


def report(agents: int, trials: Sequence[Trial], reforms: int) -> str:
    return f"""# {agents} hollow agents

How fast a new world reaches every agent of a large job, and what the protocol costs the API server. The
embedded API server and the controller are the real ones, each a process of its own. Agents are hollow: they
watch the ElasticJob, report their state and renew their Lease as an in-pod agent does, but train nothing, and
all of them share one process. Pods go to no node: a hollow kubelet calls each Running as soon as it exists.
The times include what the server's and the agents' one machine needs to serialise and parse the job for
{agents} watchers.

{table(agents, trials)}

"Joining" and "forming" each end with {QUIET_SECONDS:g} s of quiet. The controller's own Lease is not counted.
The ElasticJob is {max(t.job_bytes for t in trials) / 1024:.1f} KiB at the end.

Measured on {date.today()} with {os.cpu_count()} CPU cores (load average {os.getloadavg()[1]:.1f}, other work
beside it), {platform.system()}, Python {platform.python_version()}. To run it again:

    python -m benchmarks.hollow --agents {agents} --trials {len(trials)} --reforms {reforms}
"""


async def run(agents: int, trials: int, reforms: int) -> list[Trial]:
    with tempfile.TemporaryDirectory(prefix="hollow-") as folder:
        cluster = Cluster(Home(Path(folder) / "home"))
        try:
            await cluster.start()
            return [await run_trial(cluster, agents, reforms) for _ in range(trials)]
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a world reaches many agents, and what it costs.")
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--reforms", type=int, default=5, help="failures per trial")
    arguments = parser.parse_args()
    trials = asyncio.run(run(arguments.agents, arguments.trials, arguments.reforms))
    REPORT.write_text(report(arguments.agents, trials, arguments.reforms))
    print(table(arguments.agents, trials))


if __name__ == "__main__":
    main()
