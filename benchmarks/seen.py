"""What a person waits for who looks at a large job: the stacks of all ranks, and the dashboard in Chromium.

The ranks are hollow (hollow.py), on the embedded cluster or another one; `dlr job stacks` and `dlr dashboard`
are the commands themselves, each a process of its own.

    python -m benchmarks.seen --ranks 4 1000
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.hollow import JOB, Figures, job_of, table
from benchmarks.hollow_agents import Agent, HollowNodes, Sightings, now
from benchmarks.hollow_cluster import (
    START_TIMEOUT_SECONDS,
    Cluster,
    background,
    cluster_at,
    cpu_seconds,
    until,
    until_none,
)
from controller.cache import Cache
from controller.client import Client
from controller.resources import PODS
from crds import names
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.shapes import SHAPES
from tests.dashboard.browser import CHROMIUM, browser

HEARTBEAT_TIMEOUT_SECONDS = 300.0
"""Of the job: renewals are not what is measured, and with the default they would be most of what is done."""
STEP = 800
MOST_STACKS_SECONDS = 120
WARM_UPDATES = 3
PAINTED = (
    "performance.getEntriesByType('paint').find((each) => each.name === 'first-contentful-paint')?.startTime"
)
DRAWN = "document.getElementById('grid')?.getAttribute('aria-label')"
FILES = """performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
    .filter((each) => !each.name.includes('/events?')).reduce((sum, each) => sum + each.transferSize, 0)"""
ROWS = (
    "stacks: s (median)",
    "stacks: s (most)",
    "stacks: CPU s of the command",
    "stacks: CPU s of the API server",
    "stacks: CPU s of all agents",
    "page: first paint, s",
    "page: ranks are drawn, s",
    "page: KB of its files",
    "page: KB of an update",
    "dashboard: updates a second",
    "dashboard: CPU s a second",
    "API server: CPU s a second meanwhile",
    "all ranks tell steps: updates a second",
    "all ranks tell steps: CPU s of the dashboard, a second",
    "browser: CPU s of the page a second",
    "load average of the machine",
)


async def run_trial(cluster: Cluster, ranks: int, tries: int, seconds: float) -> Figures:
    async with training(cluster, ranks) as nodes:
        told = [await ask_for_stacks(cluster, ranks) for _ in range(tries)]
        figures: Figures = {name: statistics.median(each[name] for each in told) for name in told[0]}
        figures["stacks: s (most)"] = max(each["stacks: s (median)"] for each in told)
        figures |= await look_at_page(cluster, nodes, seconds)
    return figures | {"load average of the machine": os.getloadavg()[0]}


@asynccontextmanager
async def training(cluster: Cluster, ranks: int) -> AsyncIterator[HollowNodes]:
    """A job all of whose hollow ranks train."""
    async with cluster.client() as agents, cluster.client() as kubelet, cluster.client() as client:
        nodes = HollowNodes(
            kubelet,
            agents,
            Sightings(ranks),
            heartbeat_seconds=heartbeat_seconds(ranks, HEARTBEAT_TIMEOUT_SECONDS),
            held_back=None,
        )
        cache = Cache(client, namespace=cluster.namespace, label_selectors={PODS: f"{names.LABEL_JOB}={JOB}"})
        cache.keep_only(SHAPES)
        cache.add_handler(PODS, nodes.handle)
        async with background(cache.run()), background(nodes.run()):
            await cache.wait_synced(START_TIMEOUT_SECONDS)
            made = job_of(JOB, ranks, cluster.namespace)
            made["spec"]["elasticPolicy"] = {"heartbeatTimeoutSeconds": HEARTBEAT_TIMEOUT_SECONDS}
            await client.create(ELASTICJOBS, made)
            await until(
                lambda: (
                    len(nodes.agents) == ranks
                    and all(each.running.is_set() for each in nodes.agents.values())
                )
            )
            for agent in nodes.agents.values():
                await agent.report_steps(STEP, STEP)
            yield nodes
        await gone(client, cluster.namespace)


async def gone(client: Client, namespace: str) -> None:
    await client.delete(ELASTICJOBS, JOB, namespace)
    await until_none(client, namespace, ELASTICWORKERS, PODS)


async def ask_for_stacks(cluster: Cluster, ranks: int) -> Figures:
    """Measure from the command to its last line.

    Raises:
        RuntimeError: it did not print the stacks of all ranks; with what it did print.
    """
    begun = _used(cluster)
    process = await asyncio.create_subprocess_exec(
        *command(cluster, "job", "stacks", JOB, "--timeout", f"{MOST_STACKS_SECONDS}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    seconds, of_command, of_server, of_agents = (b - a for a, b in zip(begun, _used(cluster), strict=True))
    if not out.startswith(f"{ranks} processes at ".encode()) or err:
        raise RuntimeError(f"dlr job stacks: {out.decode()[:500]} {err.decode()[:500]}")
    return {
        "stacks: s (median)": seconds,
        "stacks: CPU s of the command": of_command,
        "stacks: CPU s of the API server": of_server,
        "stacks: CPU s of all agents": of_agents,
    }


def _used(cluster: Cluster) -> tuple[float, float, float, float]:
    """The time, and CPU seconds of ended commands, the API server, and this process with the agents in it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now(), children.ru_utime + children.ru_stime, cluster.server_cpu_seconds(), time.process_time()


def command(cluster: Cluster, *words: str) -> list[str]:
    where = {
        "--namespace": cluster.namespace,
        "--kubeconfig": cluster.kubeconfig,
        "--context": cluster.context,
    }
    options = [part for name, value in where.items() if value is not None for part in (name, str(value))]
    return [sys.executable, "-m", "dlr.cli", *words, *options]


async def look_at_page(cluster: Cluster, nodes: HollowNodes, seconds: float) -> Figures:
    """What the page takes while it is open in one browser."""
    ranks = len(nodes.agents)
    process = await asyncio.create_subprocess_exec(
        *command(cluster, "dashboard", JOB), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        figures = await _follow(url.partition("#")[0], process.pid, cluster, seconds)
        async with background(tell_steps(nodes, heartbeat_seconds(ranks, HEARTBEAT_TIMEOUT_SECONDS))):
            busy = await _follow(url.partition("#")[0], process.pid, cluster, seconds)
        figures |= {
            "all ranks tell steps: updates a second": busy["dashboard: updates a second"],
            "all ranks tell steps: CPU s of the dashboard, a second": busy["dashboard: CPU s a second"],
        }
        if CHROMIUM is not None:
            figures |= await _paint(url, ranks, seconds)
    finally:
        process.terminate()
        await process.wait()
    return figures


async def tell_steps(nodes: HollowNodes, period_seconds: float) -> None:
    """Each rank tells how far it is once in a period, as agents do."""
    between = period_seconds / len(nodes.agents)
    async with asyncio.TaskGroup() as tasks:
        for place, agent in enumerate(nodes.agents.values()):
            tasks.create_task(_tell_steps(agent, place * between, period_seconds))


async def _tell_steps(agent: Agent, first_seconds: float, period_seconds: float) -> None:
    await asyncio.sleep(first_seconds)
    for step in itertools.count(STEP + 1):
        await agent.report_steps(step, STEP)
        await asyncio.sleep(period_seconds)


async def _follow(url: str, pid: int, cluster: Cluster, seconds: float) -> Figures:
    """Updates as the page gets them, once the first ones are over."""
    query = {"view": "job", "namespace": cluster.namespace, "name": JOB}
    async with (
        aiohttp.ClientSession(read_bufsize=2**24) as session,
        session.get(f"{url}events", params=query) as answer,
    ):
        for _ in range(WARM_UPDATES):
            line = await answer.content.readuntil(b"\n\n")
        told = json.loads(line.removeprefix(b"data: "))
        if told["trouble"]:
            raise RuntimeError(f"dlr dashboard: {told['trouble']}")
        began, used, of_server, updates = now(), cpu_seconds(pid), cluster.server_cpu_seconds(), 0
        while now() < began + seconds:
            line = await answer.content.readuntil(b"\n\n")
            updates += 1
        took = now() - began
    return {
        "page: KB of an update": len(line) / 1e3,
        "dashboard: updates a second": updates / took,
        "dashboard: CPU s a second": (cpu_seconds(pid) - used) / took,
        "API server: CPU s a second meanwhile": (cluster.server_cpu_seconds() - of_server) / took,
    }


async def _paint(url: str, ranks: int, seconds: float) -> Figures:
    async with browser() as page:
        await page.size(1280, 900)
        await page.open(url)
        began = now()
        await page.wait_for(f"({DRAWN} || '').startsWith('{ranks} workers')")
        drawn = now() - began
        paint = await page.evaluate(PAINTED)
        files = await page.evaluate(FILES)
        await page.call("Performance.enable")
        before = await _task_seconds(page)
        await asyncio.sleep(seconds)
        spent = await _task_seconds(page) - before
        if page.errors:
            raise RuntimeError(f"the page: {page.errors}")
    return {
        "page: first paint, s": paint / 1e3,
        "page: ranks are drawn, s": drawn,
        "page: KB of its files": files / 1e3,
        "browser: CPU s of the page a second": spent / seconds,
    }


async def _task_seconds(page: Any) -> float:
    metrics = (await page.call("Performance.getMetrics"))["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


async def run(arguments: argparse.Namespace) -> None:
    known: dict[str, Figures] = {}
    async with cluster_at(arguments.kubeconfig, arguments.context, arguments.namespace, "") as cluster:
        for ranks in arguments.ranks:
            known[f"{ranks:,} ranks"] = await run_trial(cluster, ranks, arguments.tries, arguments.seconds)
            print(table(ROWS, known), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 1_000])
    parser.add_argument("--tries", type=int, default=5, help="of the stacks")
    parser.add_argument("--seconds", type=float, default=30.0, help="of looking at the page")
    parser.add_argument("--kubeconfig", help="of another cluster than the embedded one")
    parser.add_argument("--context", help="of that kubeconfig, or of the default one")
    parser.add_argument("--namespace", default="dlr-seen", help="to make there, and to delete at the end")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
