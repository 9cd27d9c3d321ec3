"""From a worker's wish for more elements to its lease: `python -m benchmarks.shards_latency`.

The embedded API server and the controller are the real ones, as processes of their own. Agents are hollow:
they report and watch as agents do, and so many of them ask at the same moment.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from benchmarks.hollow import JOB, job_of
from benchmarks.hollow_agents import Agent, HollowNodes, Sightings, now
from benchmarks.hollow_cluster import START_TIMEOUT_SECONDS, background, cluster_at, until
from controller.cache import Cache
from controller.client import Client
from controller.resources import ELASTICJOBS, ELASTICWORKERS, PODS, Object
from crds import names
from crds.intervals import to_text
from crds.leases import Lease, leases_from_text

SET = {"name": "bench", "epoch": 0, "size": 2**53 - 1, "digest": "", "retries": 3, "maxFailed": 0}
QUIET = {"failed": "", "reason": "", "leaves": False, "restoration": 0, "undone": ""}

NOTHING = Lease(0, 1, 0, ())


class Leases:
    """The newest lease of each worker, as the agents' watch tells."""

    def __init__(self) -> None:
        self.newest: dict[int, Lease] = {}
        self.news = asyncio.Condition()

    async def follow(self, client: Client, namespace: str) -> None:
        async with client.watch(
            ELASTICJOBS,
            namespace,
            resource_version="0",
            timeout_seconds=600,
            field_selector=f"metadata.name={JOB}",
        ) as stream:
            while (lines := await stream.lines(600)) is not None:
                for line in filter(None, lines):
                    await self._take_in(Sightings(0).read(line)["object"])

    async def _take_in(self, job: Object) -> None:
        for each in (job.get("status") or {}).get("shards") or ():
            async with self.news:
                self.newest |= {lease.worker: lease for lease in leases_from_text(each.get("leases", ""))}
                self.news.notify_all()

    async def ask(self, client: Client, agent: Agent, namespace: str) -> float:
        """Seconds until the worker has a newer lease."""
        known, began = self.newest.get(agent.index, NOTHING), now()
        # Nothing is done: at such a pace the set would be over before the benchmark is.
        said = {**SET, **QUIET, "lease": known.number, "rest": to_text(known.elements), "wants": True}
        name = f"{JOB}-{names.WORKER}-{agent.index}"
        patch = {"status": {"agent": {"shards": [said]}}}
        await client.patch(ELASTICWORKERS, name, patch, namespace, subresource="status")
        async with self.news:
            await self.news.wait_for(lambda: self.newest.get(agent.index, NOTHING).number > known.number)
        return now() - began


async def run(workers: int, times: int) -> None:
    async with (
        cluster_at(None, None, "default", "") as cluster,
        cluster.client() as client,
        cluster.client() as other,
    ):
        sightings, namespace = Sightings(workers), cluster.namespace
        nodes = HollowNodes(other, client, sightings, heartbeat_seconds=10.0, held_back=-1)
        cache = Cache(other, namespace=namespace, label_selectors={PODS: f"{names.LABEL_JOB}={JOB}"})
        cache.add_handler(PODS, nodes.handle)
        leases = Leases()
        async with background(cache.run()), background(nodes.run()):
            await cache.wait_synced(START_TIMEOUT_SECONDS)
            await client.create(ELASTICJOBS, job_of(JOB, workers, namespace))
            await sightings.by_all(1)
            await until(lambda: all(agent.running.is_set() for agent in nodes.agents.values()))
            async with background(leases.follow(client, namespace)):
                for at_once in (1, workers):
                    took = []
                    for _ in range(times):
                        asking = list(nodes.agents.values())[:at_once]
                        took += await asyncio.gather(
                            *(leases.ask(client, agent, namespace) for agent in asking)
                        )
                        await asyncio.sleep(0.2)
                    deciles = statistics.quantiles(took, n=10)
                    print(
                        f"{at_once} of {workers} workers ask at once: "
                        f"{statistics.median(took) * 1e3:.0f} ms in the median, "
                        f"{deciles[0] * 1e3:.0f} to {deciles[-1] * 1e3:.0f} in eight of ten",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--times", type=int, default=50)
    args = parser.parse_args()
    asyncio.run(run(args.workers, args.times))


if __name__ == "__main__":
    main()
