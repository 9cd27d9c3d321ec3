"""How fast the death of a process in one replica group reaches the others, and what it costs: hollow agents.

As `benchmarks.hollow`, with a job of replica groups: agents follow the ElasticWorlds of their group and job.
When all groups train together, single agents report a failure. The clock runs from the server's answer until
agents of the other groups have seen the version without the group, and until all have seen the one with it.

    flock /tmp/heavy.lock python -m benchmarks.groups --groups 100 --workers 20
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.hollow import HEARTBEAT_TIMEOUT_SECONDS, QUIET_SECONDS, Figures, job_of, table
from benchmarks.hollow_agents import STEP_TIMEOUT_SECONDS, Agent, HollowNodes, Sightings, Writes, now
from benchmarks.hollow_cluster import (
    START_TIMEOUT_SECONDS,
    Cluster,
    Meter,
    background,
    between,
    cluster_at,
    until,
)
from controller.cache import Cache
from controller.client import Client
from controller.resources import PODS, Object
from crds import names
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import SHAPES

JOB = "hollow"


class Versions:
    """When each agent first saw each version of the membership, and which groups were in it."""

    def __init__(self, agents: int) -> None:
        self.sightings = Sightings(agents)
        self.groups: dict[int, dict[int, int]] = {}
        """By version: the rounds of the groups, by index."""
        self.seen: dict[int, dict[int, float]] = {}

    def note(self, replicas: Object, number: int) -> None:
        version = replicas["version"]
        self.groups.setdefault(version, {each["index"]: each["round"] for each in replicas.get("groups", ())})
        self.seen.setdefault(version, {}).setdefault(number, now())
        self.sightings.note(version, number)

    def newest_with(self, count: int) -> int | None:
        """The newest version, if that many groups are in it."""
        newest = max(self.groups, default=0)
        return newest if newest and len(self.groups[newest]) == count else None


class GroupAgent(Agent):
    """An agent of a replica group. Its processes are ready to take part as soon as they run."""

    def __init__(self, versions: Versions, workers: int, *args: Any) -> None:
        super().__init__(*args)
        labels = self._pod["labels"]
        self.group = int(labels[names.LABEL_GROUP_INDEX])
        self.number = self.group * workers + self.index
        self._grouped = labels[names.LABEL_GROUPED_JOB]
        self._versions = versions

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._follow(self._grouped, self._versions.sightings, self._see))

    async def _see(self, world: Object) -> None:
        if replicas := world.get("replicas"):
            self._versions.note(replicas, self.number)

    async def _report(self, state: str, failure: Object | None = None) -> None:
        await super()._report(state, failure)
        if state == "Running":
            await self._tell({"replicas": {"round": self._round}})


class HollowGroups(HollowNodes):
    """Hollow nodes with an agent of a replica group in each Pod."""

    def __init__(self, versions: Versions, groups: int, workers: int, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._versions, self._workers = versions, workers
        self.worlds = [Sightings(workers) for _ in range(groups)]
        """What the agents of each group have seen of its world."""

    def _agent_of(self, pod: Object) -> Agent:
        world = self.worlds[int(pod["metadata"]["labels"][names.LABEL_GROUP_INDEX])]
        return GroupAgent(
            self._versions, self._workers, self._agents_client, pod, world, self._heartbeat_seconds
        )


@contextlib.asynccontextmanager
async def training(
    cluster: Cluster, groups: int, workers: int
) -> AsyncIterator[tuple[HollowGroups, Versions, Meter, Client]]:
    """A job of so many groups, whose agents are all there and take part."""
    count = groups * workers
    versions = Versions(count)
    async with (
        cluster.client() as agent_client,
        cluster.client() as kubelet_client,
        cluster.client() as client,
    ):
        nodes = HollowGroups(
            versions,
            groups,
            workers,
            kubelet_client,
            agent_client,
            versions.sightings,
            heartbeat_seconds=heartbeat_seconds(count, HEARTBEAT_TIMEOUT_SECONDS),
            held_back=None,
        )
        selectors = {PODS: f"{names.LABEL_GROUPED_JOB}={JOB}"}
        cache = Cache(client, namespace=cluster.namespace, label_selectors=selectors)
        cache.keep_only(SHAPES)
        cache.add_handler(PODS, nodes.handle)
        meter = Meter(cluster, Writes(agent_client), Writes(kubelet_client))
        async with background(cache.run()), background(nodes.run()):
            await cache.wait_synced(START_TIMEOUT_SECONDS)
            job = job_of(JOB, count, cluster.namespace)
            job["spec"]["elasticPolicy"] = {"replicaGroups": {"workers": workers}}
            await client.create(ELASTICJOBS, job)
            await until(lambda: versions.newest_with(groups) is not None)
            await meter.quiet(QUIET_SECONDS)
            yield nodes, versions, meter, client


async def fail(nodes: HollowGroups, versions: Versions, meter: Meter) -> Figures:
    """One agent reports a failure: what follows, until its group takes part again and all is quiet."""
    groups = len(nodes.worlds)
    before = max(versions.groups)
    agent = random.choice(list(nodes.agents.values()))
    assert isinstance(agent, GroupAgent)
    received, of_job = [world.bytes for world in nodes.worlds], versions.sightings.bytes
    started = await meter.read()
    await agent.report_failure()
    failed = now()
    async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
        without = [moment - failed for moment in await versions.sightings.by_all(before + 1)]
        assert agent.group not in versions.groups[before + 1]
        await until(lambda: versions.newest_with(groups) is not None)
        newest = max(versions.groups)
        back = [moment - failed for moment in await versions.sightings.by_all(newest)]
    spent = between(started, await meter.quiet(QUIET_SECONDS))
    woken = [index for index, world in enumerate(nodes.worlds) if world.bytes != received[index]]
    assert woken == [agent.group], "no agent of another group hears of this group's world"
    beats = spent.seconds * len(nodes.agents) / nodes._heartbeat_seconds
    return {
        "death → the first agent sees the version without the group, s": without[0],
        "death → half of the agents see it, s": statistics.median(without),
        "death → all see it, s": without[-1],
        "death → all see the version with the group again, s": back[-1],
        "versions": newest - before,
        "groups whose world is sent": len(woken),
        "writes by agents, without heartbeats": round(spent.agent_writes - beats),
        "writes by the controller": spent.controller_writes,
        "MB of memberships sent by watch": (versions.sightings.bytes - of_job) / 1e6,
        "CPU s of the controller": spent.controller_cpu_seconds,
        "CPU s of the API server": spent.server_cpu_seconds,
    }


async def run(arguments: argparse.Namespace) -> None:
    async with cluster_at(None, None, "", "") as cluster:
        began = now()
        async with training(cluster, arguments.groups, arguments.workers) as (nodes, versions, meter, client):
            print(f"all take part after {now() - began:.1f} s, version {max(versions.groups)}", flush=True)
            deaths = [await fail(nodes, versions, meter) for _ in range(arguments.deaths)]
            worlds = await client.get(ELASTICJOBS, JOB, cluster.namespace)
            print(f"ElasticJob {len(str(worlds)) / 1e3:.1f} KB, load {os.getloadavg()[0]:.1f}")
    by_row = {row: [each[row] for each in deaths] for row in deaths[0]}
    figures = {
        "median": {row: statistics.median(found) for row, found in by_row.items()},
        "most": {row: max(found) for row, found in by_row.items()},
    }
    print(table(list(deaths[0]), figures))


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a death in one replica group reaches the others.")
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--workers", type=int, default=20, help="of a group")
    parser.add_argument("--deaths", type=int, default=10)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
