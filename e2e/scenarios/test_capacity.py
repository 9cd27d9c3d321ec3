"""Room that comes and goes: a job uses it while nobody else does, and gives it back at once."""

from __future__ import annotations

import time

import pytest

from e2e import capacity, elasticity, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

PROBE_SECONDS = 2

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.WIDE_NODES)


def test_a_freed_node_is_trained_on_until_a_pod_of_higher_priority_takes_it(
    cluster: Cluster, observation: Observation
) -> None:
    capacity.priority_classes(cluster)
    with capacity.others(cluster, observation, ["other-0", "other-1", "other-2"]):
        grow_and_shrink(cluster, observation)


def grow_and_shrink(cluster: Cluster, observation: Observation) -> None:
    job = capacity.grower(cluster, observation.namespace, probe_seconds=PROBE_SECONDS)
    cluster.apply(job, observation.namespace)
    capacity.wait_for_steps(observation, [0])
    reason = observation.wait_for(
        "a probe that finds no node", lambda: capacity.growth(observation).get("reason")
    )
    assert reason == "no node for 1 more worker within 2 s"

    freed_at = capacity.remove(cluster, observation, ["other-0"])
    grown_at = capacity.wait_for_steps(observation, [0, 1])
    pod = observation.pods()["grower-worker-1-1"]
    assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == (capacity.IDLE, -100)

    capacity.ask_for_node(cluster, observation, "urgent", capacity.URGENT)
    preempted_at = time.time()
    cluster.kubectl(  # as a scheduler preempts: the victim is deleted, with its grace
        "delete", "pod", pod["metadata"]["name"], "--wait=false", "-n", observation.namespace
    )
    capacity.wait_for_nodes(observation, ["urgent"])
    placed_at = time.time()
    capacity.wait_for_steps(observation, [0])
    print(
        f"freed → first step of two workers {grown_at - freed_at:.1f} s (probeSeconds {PROBE_SECONDS}); "
        f"preempted → the other Pod has its node {placed_at - preempted_at:.1f} s, "
        f"next step of the others {time.time() - preempted_at:.1f} s"
    )

    def given_back() -> Object | None:
        told = observation.events(reason="ExtraWorkersGivenBack", of="grower")
        return told[-1] if told else None

    observation.wait_for("an Event of it", given_back)
    assert [list(world.members) for world in elasticity.worlds(observation, "grower")] == [[0], [0, 1], [0]]
    capacity.end(cluster, observation)
    jobs.assert_one_world_a_round(observation, "grower")
    usage = capacity.usage(observation)
    assert usage["worlds"][0]["workers"] == 1
    assert usage["memoryPeakBytes"]["worker"] > 2**20
