"""A job grows from 4 to 8 nodes, or not where that brings nothing; the next one begins where it ended."""

from __future__ import annotations

from math import ceil

from e2e import capacity, elasticity, jobs
from e2e.cluster import Cluster
from e2e.observation import Observation

NODES = 8
PROBE_SECONDS = 5
OTHERS = [f"other-{number}" for number in range(4)]
BOUND_SECONDS = PROBE_SECONDS + 3
"""On a quiet machine; docs/capacity.md has what was measured."""
MEBIBYTE = 2**20


def test_four_of_eight_nodes_are_freed_and_all_are_trained_on(
    cluster: Cluster, observation: Observation
) -> None:
    capacity.priority_classes(cluster)
    with capacity.others(cluster, observation, OTHERS):
        job = capacity.grower(cluster, observation.namespace, workers=4, most=8, probe_seconds=PROBE_SECONDS)
        cluster.apply(job, observation.namespace)
        capacity.wait_for_steps(observation, [0, 1, 2, 3])
        observation.wait_for(
            "a probe that finds no node", lambda: capacity.opportunity(observation).get("reason")
        )
        freed_at = capacity.remove(cluster, observation, OTHERS)
        grown_at = capacity.wait_for_steps(observation, list(range(8)))
        worlds = elasticity.worlds(observation, "grower")
        formed = jobs.unix_time(worlds[-1].formed_at)
        print(
            f"4 of 8 nodes freed → world of 8 after {formed - freed_at:.1f} s, first step after "
            f"{grown_at - freed_at:.1f} s; bound {BOUND_SECONDS} s (probeSeconds {PROBE_SECONDS}, and 3 s); "
            f"{[w.members for w in worlds]}"
        )
        assert len(worlds) <= 3
        capacity.end(cluster, observation)


def test_a_job_that_does_not_scale_stops_after_one_try_and_the_next_begins_with_what_it_came_to(
    cluster: Cluster, observation: Observation
) -> None:
    capacity.priority_classes(cluster)
    namespace = observation.namespace
    first = capacity.grower(
        cluster,
        namespace,
        name="flat-1",
        workers=2,
        most=4,
        probe_seconds=2,
        scales=False,
        optimizeMode="cluster",
    )
    cluster.apply(first, namespace)
    reason = observation.wait_for(
        "the growth to be judged",
        lambda: (
            found
            if "minEfficiency" in (found := capacity.opportunity(observation, "flat-1").get("reason", ""))
            else None
        ),
    )
    elasticity.wait_for_world(observation, [0, 1], "flat-1")
    print(reason)
    assert reason.startswith("4 workers instead of 2 add ")
    (no_profile,) = observation.events(reason="NoProfile", of="flat-1")
    assert no_profile["message"].startswith("no job of the name flat has trained and finished yet")
    assert [w.members for w in elasticity.worlds(observation, "flat-1")] == [(0, 1), (0, 1, 2, 3), (0, 1)]
    capacity.end(cluster, observation, "flat-1")

    usage = observation.job("flat-1")["status"]["usage"]
    peak = usage["memoryPeakBytes"]["worker"]
    second = capacity.grower(
        cluster, namespace, name="flat-2", workers=1, most=4, optimizeMode="cluster", elasticPolicy={}
    )
    del second["spec"]["replicaSpecs"]["worker"]["replicas"]
    cluster.apply(second, namespace)
    elasticity.wait_for_world(observation, [0, 1], "flat-2")
    (taken,) = observation.events(reason="ProfileTaken", of="flat-2")
    print(taken["message"])
    pod = observation.pods()["flat-2-worker-0-1"]
    memory = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert memory == f"{ceil(1.2 * peak / MEBIBYTE)}Mi"
    assert len(elasticity.worlds(observation, "flat-2")) == 1, "it begins with two"
    capacity.end(cluster, observation, "flat-2")
