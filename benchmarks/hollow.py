"""How fast a world reaches many agents, and what it costs: 200 to 2,000 agents without torch, on any cluster.

Pods go to no node: a hollow kubelet in this process calls each Running as soon as it exists, and a hollow
agent, a few coroutines, plays the agent's part of the protocol for it: watch the one ElasticWorld, report to
`status.agent`, renew the Lease. All but one agent report Ready; when all is quiet the last one does, and the
clock runs from the server's answer to that until every agent has seen the world it is in. When the controller
has nothing left to write, the job trains for a while. Then single agents report a failure, and the clock runs
until every agent has seen the next round.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from datetime import date
from pathlib import Path

import orjson

from benchmarks.hollow_agents import HollowNodes, Sightings, Writes, now
from benchmarks.hollow_cluster import (
    START_TIMEOUT_SECONDS,
    Cluster,
    Meter,
    Spent,
    background,
    between,
    cluster_at,
    until,
    until_none,
)
from controller.cache import Cache
from controller.client import Client
from controller.resources import PODS, Object
from crds import names
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.shapes import SHAPES

REPORT = Path(__file__).parent.parent / "docs" / "hollow-agents.md"
FIGURES = REPORT.with_suffix(".json")
"""What was measured so far, by what it was measured of: a run replaces its own."""
JOB = "hollow"
SCHEDULER = "hollow"
"""Nobody's, so that no real scheduler gives the Pods to a kubelet."""
QUIET_SECONDS = 2.0
HEARTBEAT_TIMEOUT_SECONDS = 30.0
"""Of the job, which is the default."""

Figures = dict[str, float]
ROWS = (
    "last Ready → the first agent sees the world, s",
    "last Ready → half of the agents see it, s",
    "last Ready → all see it, s",
    "one failure → all see the next round, s (median)",
    "one failure → all see the next round, s (most)",
    "joining: s",
    "joining: writes a worker by its agent",
    "joining: writes a worker by the controller",
    "joining: CPU s of the controller",
    "joining: CPU s of the API server",
    "joining: MB sent by watch",
    "forming, until the controller has written all: s",
    "forming: writes a worker by its agent",
    "forming: writes a worker by the controller",
    "forming: CPU s of the controller",
    "forming: MB sent by watch",
    "one re-forming: MB sent by watch",
    "steady, a minute: writes a worker by its agent",
    "steady, a minute: writes by the controller, in all",
    "steady, a minute: CPU s of the controller",
    "steady, a minute: CPU s of the API server",
    "ElasticJob, KB",
    "load average of the machine",
)


async def run_trial(cluster: Cluster, agents: int, reforms: int, steady_seconds: float) -> Figures:
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
            heartbeat_seconds=heartbeat_seconds(agents, HEARTBEAT_TIMEOUT_SECONDS),
            held_back=agents - 1,
        )
        cache = Cache(client, namespace=cluster.namespace, label_selectors={PODS: f"{names.LABEL_JOB}={JOB}"})
        cache.keep_only(SHAPES)
        cache.add_handler(PODS, nodes.handle)
        async with background(cache.run()), background(nodes.run()):
            await cache.wait_synced(START_TIMEOUT_SECONDS)
            trial = Trial(client, cluster.namespace, meter, nodes, sightings)
            figures = await trial.run(agents, reforms, steady_seconds)
        await client.delete(ELASTICJOBS, JOB, cluster.namespace)
        await until_none(client, cluster.namespace, ELASTICWORKERS, PODS)
    return figures


class Trial:
    """One job from its creation on."""

    def __init__(
        self, client: Client, namespace: str, meter: Meter, nodes: HollowNodes, sightings: Sightings
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._meter = meter
        self._nodes = nodes
        self._sightings = sightings
        self._figures: Figures = {}

    async def run(self, agents: int, reforms: int, steady_seconds: float) -> Figures:
        await self._join(agents)
        await self._form(agents)
        await self._train(agents, steady_seconds)
        await self._fail(agents, reforms)
        job = await self._client.get(ELASTICJOBS, JOB, self._namespace)
        job["metadata"].pop("managedFields", None)
        last = {
            "ElasticJob, KB": len(orjson.dumps(job)) / 1e3,
            "load average of the machine": os.getloadavg()[1],
        }
        return self._figures | last

    async def _join(self, agents: int) -> None:
        """Until all but one are Ready, and the controller is quiet."""
        nodes, started = self._nodes, await self._meter.read()
        began = now()
        await self._client.create(ELASTICJOBS, job_of(JOB, agents, self._namespace))
        await until(lambda: nodes.ready == agents - 1 and len(nodes.agents) == agents)
        self._figures["joining: s"] = now() - began
        self._spent("joining", between(started, await self._meter.quiet(QUIET_SECONDS)), agents)

    async def _form(self, agents: int) -> None:
        before, started = self._sightings.bytes, await self._meter.read()
        await self._nodes.agents[agents - 1].report_ready()
        last_ready = now()
        seen = [moment - last_ready for moment in await self._sightings.by_all(1)]
        for who, seconds in (
            ("the first agent sees the world", seen[0]),
            ("half of the agents see it", statistics.median(seen)),
            ("all see it", seen[-1]),
        ):
            self._figures[f"last Ready → {who}, s"] = seconds
        await self._all_run()
        spent = between(started, await self._meter.quiet(QUIET_SECONDS))
        self._figures["forming, until the controller has written all: s"] = spent.seconds - QUIET_SECONDS
        self._spent("forming", spent, agents)
        self._figures["forming: MB sent by watch"] = (self._sightings.bytes - before) / 1e6

    async def _train(self, agents: int, seconds: float) -> None:
        started = await self._meter.read()
        await asyncio.sleep(seconds)
        spent = between(started, await self._meter.read())
        minute = Spent(*(value * 60 / spent.seconds for value in astuple(spent)))
        self._spent("steady, a minute", minute, agents)
        self._figures["steady, a minute: writes by the controller, in all"] = minute.controller_writes

    async def _fail(self, agents: int, reforms: int) -> None:
        """Each from the answer to a failure report until the last agent saw the next round.

        Training got further before each: otherwise failures in a row are made to wait (`failure/budgets.py`).
        """
        times, before = [], self._sightings.bytes
        for round_ in range(2, 2 + reforms):
            failing = random.choice(list(self._nodes.agents.values()))
            await failing.report_steps(round_, 0)
            await self._meter.quiet(QUIET_SECONDS)
            await failing.report_failure()
            failed = now()
            times.append((await self._sightings.by_all(round_))[-1] - failed)
            await self._all_run()
            await self._meter.quiet(QUIET_SECONDS)
        if times:
            self._figures["one failure → all see the next round, s (median)"] = statistics.median(times)
            self._figures["one failure → all see the next round, s (most)"] = max(times)
            sent = (self._sightings.bytes - before) / len(times)
            self._figures["one re-forming: MB sent by watch"] = sent / 1e6

    async def _all_run(self) -> None:
        await until(lambda: all(agent.running.is_set() for agent in self._nodes.agents.values()))

    def _spent(self, what: str, spent: Spent, agents: int) -> None:
        self._figures |= {
            f"{what}: writes a worker by its agent": spent.agent_writes / agents,
            f"{what}: writes a worker by the controller": spent.controller_writes / agents,
            f"{what}: CPU s of the controller": spent.controller_cpu_seconds,
            f"{what}: CPU s of the API server": spent.server_cpu_seconds,
        }
        self._figures.setdefault("joining: MB sent by watch", self._sightings.bytes / 1e6)


def job_of(name: str, agents: int, namespace: str) -> Object:
    container = {"name": "main", "image": "hollow", "command": ["true"]}
    spec = {"restartPolicy": "Never", "schedulerName": SCHEDULER, "containers": [container]}
    worker = {"replicas": agents, "restartCount": 1_000, "template": {"spec": spec}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicaSpecs": {names.WORKER: worker}},
    }


def table(rows: Sequence[str], known: Mapping[str, Figures]) -> str:
    head = f"| | {' | '.join(known)} |\n|---|{'--:|' * len(known)}"
    lines = [f"| {row} | {' | '.join(_cell(known[name], row) for name in known)} |" for row in rows]
    return "\n".join([head, *lines])


def _cell(figures: Figures, row: str) -> str:
    figure = figures.get(row)
    return "" if figure is None else f"{figure:,.2f}" if figure < 100 else f"{figure:,.0f}"


def report(known: Mapping[str, Figures]) -> str:
    return f"""# Hollow agents

How fast a new world reaches every agent of a large job, and what the protocol costs the API server. Agents
are hollow: they watch the ElasticWorld, report their state and renew their Lease as an in-pod agent does, but
train nothing, and all of them share one process. Pods go to no node: a hollow kubelet calls each Running as
soon as it exists. API server and controller are the real ones, each a process of its own, by default the
embedded cluster's, on the same machine as the agents: the times include what that machine needs to send the
job to all of them.

{table(ROWS, known)}

*Joining* lasts from the creation of the job until all agents but one are Ready, *forming* from the last Ready
until all report Running and the controller has written whatever it had put off; *steady* is what comes then.
Between two failures training gets further; otherwise the next world waits for 1 s after the second in a row,
2 s after the third ([failures.md](failures.md)).
The controller's own Lease is not counted. MB sent by watch are the job's, to all agents together.

Last measured on {date.today()} with {os.cpu_count()} CPU cores, {platform.system()}, Python
{platform.python_version()}. To run it again, there or on another cluster:

    python -m benchmarks.hollow --agents 200 1000 2000
    python -m benchmarks.hollow --agents 1000 --kubeconfig ~/.kube/config --label "Kubernetes 1.36"

On another cluster it needs an administrator's rights, makes a namespace and, if they are not there, the CRDs,
and deletes what it made. It runs a controller of its own for that namespace; where one of ours runs already,
`--metrics URL` says where its metrics are, and it is measured instead.
"""


async def run(arguments: argparse.Namespace) -> None:
    known: dict[str, Figures] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    where = (arguments.kubeconfig, arguments.context, arguments.namespace, arguments.metrics)
    async with cluster_at(*where) as cluster:
        for agents in arguments.agents:
            name = f"{agents:,}{', ' if arguments.label else ''}{arguments.label}"
            figures = await run_trial(cluster, agents, arguments.reforms, arguments.seconds)
            known[name] = figures
            print(table(ROWS, {name: figures}), flush=True)
            if not arguments.no_report:
                FIGURES.write_text(json.dumps(known, indent=1) + "\n")
                REPORT.write_text(report(known))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a world reaches many agents, and what it costs.")
    parser.add_argument("--agents", type=int, nargs="+", default=[200, 1_000, 2_000])
    parser.add_argument("--reforms", type=int, default=5, help="failures, one after the other")
    parser.add_argument("--seconds", type=float, default=300.0, help="of steady training")
    parser.add_argument("--kubeconfig", help="of another cluster than the embedded one")
    parser.add_argument("--context", help="of that kubeconfig, or of the default one")
    parser.add_argument("--namespace", default="dlr-hollow", help="to make there, and to delete at the end")
    parser.add_argument("--metrics", default="", help="URL of the metrics of the controller that runs there")
    parser.add_argument("--label", default="", help="what to call the figures besides the number of agents")
    parser.add_argument("--no-report", action="store_true", help="only print the table")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
