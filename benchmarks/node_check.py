"""What a check of 1,000 nodes costs besides the probes: time, API writes, CPU, and the size of the object.

The embedded API server and the real controller run as processes of their own. A hollow kubelet in this
process calls each Pod of the check Running as soon as it exists; a hollow agent watches the NodeCheck,
reports, renews its Lease as a real one does, and answers each duty at once. So the time of a step is all
spent outside of the probes: telling every agent, taking its answer, judging, and publishing the next step.
"""

import argparse
import asyncio
import contextlib
import os
import platform
import statistics
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import orjson

from benchmarks.hollow_agents import NAMESPACE, WATCH_SECONDS, Writes
from benchmarks.hollow_cluster import Cluster, Meter, Spent, between
from benchmarks.node_check_agents import HollowPods
from controller.cache import Cache
from controller.client import Client
from controller.resources import NODES, PODS, Object
from crds import names
from localcluster.paths import Home
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.shapes import SHAPES

REPORT = Path(__file__).parent.parent / "docs" / "node-check-scale.md"
CHECK = "hollow"
HEARTBEAT_TIMEOUT_SECONDS = 30.0
"""Of a check's workers."""
TRIAL_TIMEOUT_SECONDS = 600.0
PARALLEL_CREATES = 32


@dataclass(frozen=True)
class Step:
    """The time from one publication of the controller's to the next, as one watcher saw them."""

    name: str
    asked: int
    """Agents that had something to answer."""
    spent: Spent
    object_kb: float
    """The NodeCheck's size while the step lasted."""


async def run_trial(cluster: Cluster, agents: int, bad: int, agents_per_watch: int) -> list[Step]:
    beat_seconds = heartbeat_seconds(agents, HEARTBEAT_TIMEOUT_SECONDS)
    async with (
        cluster.client() as agent_client,
        cluster.client() as kubelet_client,
        cluster.client() as client,
    ):
        nodes = node_names(agents)
        await _add_nodes(client, nodes)
        meter = Meter(cluster, Writes(agent_client), Writes(kubelet_client))
        faulty = frozenset(nodes[:: len(nodes) // max(bad, 1)][:bad])
        pods = HollowPods(kubelet_client, agent_client, CHECK, faulty, beat_seconds)
        cache = Cache(client, label_selectors={PODS: f"{names.LABEL_CHECK}={CHECK}"})
        cache.keep_only(SHAPES)
        cache.add_handler(PODS, pods.handle)
        async with _beside(cache.run(), pods.run(agents_per_watch), _watch_over(cluster)):
            await cache.wait_synced(TRIAL_TIMEOUT_SECONDS)
            async with asyncio.timeout(TRIAL_TIMEOUT_SECONDS):
                steps = await _measure(client, meter, nodes)
            check = await client.get(NODECHECKS, CHECK, NAMESPACE)
        assert sorted(check["status"]["faultyNodes"]) == sorted(faulty), check["status"]["faultyNodes"]
        await client.delete(NODECHECKS, CHECK, NAMESPACE)
        for resource in (ELASTICWORKERS, PODS):
            while (await client.list(resource, NAMESPACE))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    return steps


async def _watch_over(cluster: Cluster) -> None:
    """Ends with an error when the controller does."""
    while True:
        cluster.check_alive()
        await asyncio.sleep(1)


def node_names(count: int) -> list[str]:
    return [f"gpu-node-{index:04d}" for index in range(count)]


async def _add_nodes(client: Client, nodes: Sequence[str]) -> None:
    gate = asyncio.Semaphore(PARALLEL_CREATES)
    known = {node["metadata"]["name"] for node in (await client.list(NODES))["items"]}

    async def add(name: str) -> None:
        async with gate:
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    await asyncio.gather(*(add(name) for name in nodes if name not in known))


async def _measure(client: Client, meter: Meter, nodes: Sequence[str]) -> list[Step]:
    """One check, step by step."""
    metadata = {"name": CHECK, "namespace": NAMESPACE}
    check = {"apiVersion": names.API_VERSION, "kind": NODECHECKS.kind, "metadata": metadata}
    spec = {"nodes": list(nodes), "cordon": False, "timeoutSeconds": 600}
    seen = await meter.read()
    made = await client.create(NODECHECKS, check | {"spec": spec})
    steps: list[Step] = []
    before, asked, size = "gathering", len(nodes), 0.0
    async for current in _publications(client, made["metadata"]["resourceVersion"]):
        status = current.get("status", {})
        name = _step_name(status)
        if name == before:
            size = len(orjson.dumps(current)) / 1000
            continue
        reading = await meter.read()
        steps.append(Step(before, asked, between(seen, reading), size))
        seen, before, size = reading, name, len(orjson.dumps(current)) / 1000
        asked = sum(len(group["members"]) for group in status["groups"]) if status["round"] else len(nodes)
        if name == "verdicts":
            steps.append(Step(name, 0, between(reading, reading), size))
            return steps
    raise RuntimeError("the watch ended before the check did")


def _step_name(status: Object) -> str:
    if status.get("phase") == "Succeeded":
        return "verdicts"
    round_ = status.get("round")
    return "gathering" if round_ is None else f"round {round_}" if round_ else "local tests"


async def _publications(client: Client, version: str) -> AsyncIterator[Object]:
    async with client.watch(
        NODECHECKS,
        NAMESPACE,
        resource_version=version,
        timeout_seconds=WATCH_SECONDS,
        field_selector=f"metadata.name={CHECK}",
    ) as stream:
        while (lines := await stream.lines(WATCH_SECONDS)) is not None:
            for event in map(orjson.loads, filter(None, lines)):
                if event["type"] in ("ADDED", "MODIFIED"):
                    yield event["object"]


@contextlib.asynccontextmanager
async def _beside(*coroutines: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs them meanwhile. An error in one of them ends it all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
        yield
        for task in tasks:
            task.cancel()


def table(trials: Sequence[Sequence[Step]]) -> str:
    header = (
        "| step | agents asked | seconds | agents' writes | controller's writes | controller CPU s "
        "| API server CPU s | object KB |\n|---|---|---|---|---|---|---|---|"
    )
    by_name: dict[str, list[Step]] = {}
    for trial in trials:
        for step in trial:
            by_name.setdefault(step.name, []).append(step)
    rows = [_row(steps) for steps in by_name.values()]
    return "\n".join((header, *rows))


def _row(steps: Sequence[Step]) -> str:
    def of(figure: str) -> float:
        return float(statistics.median(getattr(step.spent, figure) for step in steps))

    size = statistics.median(step.object_kb for step in steps)
    if not steps[0].asked:
        return f"| {steps[0].name} |  |  |  |  |  |  | {size:.0f} |"
    return (
        f"| {steps[0].name} | {steps[0].asked} | {of('seconds'):.2f} | {of('agent_writes'):.0f} "
        f"| {of('controller_writes'):.0f} | {of('controller_cpu_seconds'):.1f} "
        f"| {of('server_cpu_seconds'):.1f} | {size:.0f} |"
    )


def report(trials: Sequence[Sequence[Step]], arguments: argparse.Namespace, load: float) -> str:
    agents, share = arguments.agents, arguments.agents_per_watch
    sharing = "each with a watch of its own" if share == 1 else f"of whom {share} share a watch"
    options = f"--agents {agents} --bad {arguments.bad} --trials {arguments.trials}"
    conditions = f"{date.today()}, with a load average of {load:.1f} from other work just before"
    beat_seconds = heartbeat_seconds(agents, HEARTBEAT_TIMEOUT_SECONDS)
    return f"""# A check of {agents} nodes: what it costs besides the probes

The embedded API server and the controller are the real ones, each a process of its own. Pods and agents are
hollow: {agents} agents, {sharing}, all in one process, report and renew their
Leases as real ones do, and answer every duty at once. {arguments.bad} nodes fail every pair test.
A step lasts from its publication to the next one: that is what a check takes longer than its probes. All of
it happens on one machine with {os.cpu_count()} CPU cores, which also receives and decrypts what the server
sends to {agents} watchers; on a cluster, the nodes do that.

{table(trials)}

Gathering lasts from the creation of the NodeCheck until all agents are ready and the local tests begin: an
ElasticWorker, a Pod, a Lease and their statuses for each node. The agents' writes include their heartbeats,
one in {beat_seconds:g} s each. The object is the whole NodeCheck, spec and metadata included.

Medians of {len(trials)} checks. Measured on {conditions}.
{platform.system()}, Python {platform.python_version()}. To run it again:

    python -m benchmarks.node_check {options} --agents-per-watch {share}
"""


async def run(arguments: argparse.Namespace) -> list[list[Step]]:
    with tempfile.TemporaryDirectory(prefix="node-check-") as folder:
        cluster = Cluster(Home(Path(folder) / "home"))
        try:
            await cluster.start()
            return [
                await run_trial(cluster, arguments.agents, arguments.bad, arguments.agents_per_watch)
                for _ in range(arguments.trials)
            ]
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a check of many nodes costs besides its probes.")
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--bad", type=int, default=10, help="nodes that fail every test with others")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--agents-per-watch", type=int, default=1)
    parser.add_argument("--no-report", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    trials = asyncio.run(run(arguments))
    if not arguments.no_report:
        REPORT.write_text(report(trials, arguments, load))
    print(table(trials))


if __name__ == "__main__":
    main()
