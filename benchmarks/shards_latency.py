"""The time from a worker's wish for more elements to its lease: `python -m benchmarks.shards_latency`.

A job on the embedded cluster, whose workers do nothing with what they pull (benchmarks/shards_asking.py): API
server, controller, agents and the processes that wait are the real ones, each a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.embedded import EmbeddedCluster

NAME = "asking"
SCRIPT = Path(__file__).with_name("shards_asking.py")
WITHIN_SECONDS = 600.0


def asking(cluster: Cluster, namespace: str, workers: int, sets: int) -> Object:
    return jobs.scripted(
        cluster,
        NAME,
        workers,
        ["dlr", "exec", "python3", str(SCRIPT)],
        env={"OUT": cluster.storage(namespace).path, "SETS": str(sets)},
        resources={"requests": {"cpu": "100m", "memory": "64Mi"}},
    )


def measure(cluster: Cluster, workers: int, sets: int) -> dict[str, list[float]]:
    """Seconds from a wish to the lease; by who asked."""
    with cluster.namespace("asking") as observation:
        cluster.apply(asking(cluster, observation.namespace, workers, sets), observation.namespace)
        jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)
        folder = Path(cluster.storage(observation.namespace).path)
        return {
            f"{who} of {workers} workers": [
                float(line) for file in folder.glob(f"{phase}-?") for line in file.read_text().splitlines()
            ]
            for who, phase in (("1", "one"), ("all", "all"))
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--sets", type=int, default=2, help="that are pulled, one after the other")
    args = parser.parse_args()
    cluster = EmbeddedCluster(nodes=1)
    try:
        cluster.start()
        found = measure(cluster, args.workers, args.sets)
    finally:
        cluster.stop()
    for who, took in found.items():
        deciles = statistics.quantiles(took, n=10)
        print(
            f"{who} ask at once: {statistics.median(took) * 1e3:.0f} ms in the median, "
            f"{deciles[0] * 1e3:.0f} to {deciles[-1] * 1e3:.0f} in eight of ten ({len(took)} leases, "
            f"load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
