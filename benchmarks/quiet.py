"""What the controller costs when nothing happens: CPU and requests a minute, by jobs.

The embedded API server and the real controller run as processes of their own; agents are hollow (hollow.py).
An idle job's agents renew their Leases and tell nothing else, as those of scripts do that never tell a step.
Those of a training job also tell their steps and what their Pod uses, and rank 0 a checkpoint now and then.
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.hollow import job_of
from benchmarks.hollow_agents import Agent, HollowNodes, Sightings, now
from benchmarks.hollow_cluster import Cluster, background, until
from controller.cache import Cache
from controller.client import Client
from controller.errors import ApiError
from controller.resources import PODS
from controller.store import Change
from crds import names
from localcluster.paths import Home
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import SHAPES

JOBS = 10
WORKERS = 4
REPORT_SECONDS = 2.0
CHECKPOINT_SECONDS = 10.0
HEARTBEAT_SECONDS = 10.0
SETTLE_SECONDS = 5.0
START_TIMEOUT_SECONDS = 60.0
READS, WRITES = ("GET", "WATCH"), ("POST", "PATCH", "DELETE")


@dataclass(frozen=True)
class Quiet:
    """What the controller did in a minute in which nothing was to be done."""

    what: str
    cpu_seconds: float
    reads: float
    writes: float
    lease_renewals: float
    reconciles: float


class Fleet:
    """The hollow nodes of many jobs."""

    def __init__(self, kubelet: Client, agents: Client) -> None:
        self.jobs: dict[str, HollowNodes] = {}
        self._kubelet = kubelet
        self._agents = agents

    def add(self, name: str) -> HollowNodes:
        nodes = HollowNodes(
            self._kubelet,
            self._agents,
            Sightings(WORKERS),
            heartbeat_seconds=HEARTBEAT_SECONDS,
            held_back=-1,
        )
        self.jobs[name] = nodes
        return nodes

    def handle(self, change: Change) -> None:
        nodes = self.jobs.get(change.current["metadata"]["labels"][names.LABEL_JOB])
        if nodes is not None:
            nodes.handle(change)

    def all_run(self) -> bool:
        return all(
            len(nodes.agents) == WORKERS and all(a.running.is_set() for a in nodes.agents.values())
            for nodes in self.jobs.values()
        )


async def measure(seconds: float) -> list[Quiet]:
    with tempfile.TemporaryDirectory(prefix="quiet-") as folder:
        cluster = Cluster(Home(Path(folder) / "home"))
        try:
            await cluster.start()
            async with cluster.client() as client, cluster.client() as agents:
                return await _measure(cluster, client, agents, seconds)
        finally:
            cluster.stop()


async def _measure(cluster: Cluster, client: Client, agents: Client, seconds: float) -> list[Quiet]:
    fleet = Fleet(client, agents)
    cache = Cache(client, label_selectors={PODS: f"{names.LABEL_MANAGED_BY}={names.MANAGER}"})
    cache.keep_only(SHAPES)
    cache.add_handler(PODS, fleet.handle)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(background(cache.run()))
        await cache.wait_synced(START_TIMEOUT_SECONDS)
        found = [await _quiet(cluster, "no job", seconds)]
        for index in range(JOBS):
            name = f"job-{index}"
            await stack.enter_async_context(background(fleet.add(name).run()))
            await client.create(ELASTICJOBS, job_of(name, WORKERS, cluster.namespace))
        await until(fleet.all_run)
        found.append(await _quiet(cluster, f"{JOBS} idle jobs of {WORKERS} workers", seconds))
        for nodes in fleet.jobs.values():
            for agent in nodes.agents.values():
                await stack.enter_async_context(background(_train(agent)))
        found.append(await _quiet(cluster, f"{JOBS} training jobs of {WORKERS} workers", seconds))
    return found


async def _train(agent: Agent) -> None:
    """Tell of steps for ever, one every 100 ms."""
    began = now()
    while True:
        seconds = now() - began
        saves = int(seconds // CHECKPOINT_SECONDS) if agent.index == 0 else 0
        with contextlib.suppress(ApiError):
            await agent.report_steps(int(seconds * 10), int(saves * CHECKPOINT_SECONDS * 10))
        await asyncio.sleep(REPORT_SECONDS)


async def _quiet(cluster: Cluster, what: str, seconds: float) -> Quiet:
    await asyncio.sleep(SETTLE_SECONDS)
    started, before, (_, cpu_before) = now(), await _counters(cluster), await cluster.used()
    await asyncio.sleep(seconds)
    after, (_, cpu_after) = await _counters(cluster), await cluster.used()
    minutes = (now() - started) / 60
    spent = {name: (value - before.get(name, 0.0)) / minutes for name, value in after.items()}
    return Quiet(
        what=what,
        cpu_seconds=(cpu_after - cpu_before) / minutes,
        reads=sum(spent.get(method, 0.0) for method in READS),
        writes=sum(spent.get(method, 0.0) for method in WRITES),
        lease_renewals=spent.get("PUT", 0.0),
        reconciles=spent.get("reconciles", 0.0),
    )


async def _counters(cluster: Cluster) -> dict[str, float]:
    """Requests by method, and reconciles, since the controller began."""
    counters: dict[str, float] = {}
    for family in text_string_to_metric_families(await cluster.metrics()):
        for sample in family.samples:
            if sample.name == "rest_client_requests_total":
                key = sample.labels["method"]
            elif sample.name == "controller_runtime_reconcile_total":
                key = "reconciles"
            else:
                continue
            counters[key] = counters.get(key, 0.0) + sample.value
    return counters


def table(measured: Sequence[Quiet]) -> str:
    head = "| a minute, with | CPU s | reads | writes | renewals of its Lease | reconciles |\n"
    return (
        head
        + "|---|--:|--:|--:|--:|--:|\n"
        + "\n".join(
            f"| {m.what} | {m.cpu_seconds:.2f} | {m.reads:.0f} | {m.writes:.0f} | {m.lease_renewals:.0f} "
            f"| {m.reconciles:.0f} |"
            for m in measured
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controller costs when nothing happens.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each row")
    parser.add_argument("--json", action="store_true", help="instead of a table")
    arguments = parser.parse_args()
    measured = asyncio.run(measure(arguments.seconds))
    print(json.dumps([asdict(m) for m in measured]) if arguments.json else table(measured))
    print(f"({os.cpu_count()} CPU cores, load average {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
