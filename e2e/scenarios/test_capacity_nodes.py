"""A job grows from 4 to 8 nodes, or not where that brings nothing; the next one begins where it ended."""

from __future__ import annotations

import re
from math import ceil

import pytest

from e2e import capacity, elasticity
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NODES = 8
MEBIBYTE = 2**20

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.WIDE_NODES)


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
            if "minEfficiency" in (found := capacity.growth(observation, "flat-1").get("reason", ""))
            else None
        ),
    )
    elasticity.wait_for_world(observation, [0, 1], "flat-1")
    print(reason)
    assert re.match(r"[34] workers instead of 2 add ", reason), "as many as came in time"
    (no_profile,) = observation.events(reason="NoProfile", of="flat-1")
    assert no_profile["message"].startswith("no job of the name flat has trained and finished yet")
    before, *larger, after = [world.members for world in elasticity.worlds(observation, "flat-1")]
    assert before == after == (0, 1) and larger and all(len(members) > 2 for members in larger)
    capacity.end(cluster, observation, "flat-1")

    usage = capacity.usage(observation, "flat-1")
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
