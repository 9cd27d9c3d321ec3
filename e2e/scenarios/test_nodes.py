"""Nodes: those that vanish, and those that a Pod can never go to."""

from __future__ import annotations

import time

import pytest

from e2e import jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

HEARTBEAT_TIMEOUT_SECONDS = 18
BUSY_MACHINE_SECONDS = 240
"""For a new Pod to start: a second or two, if nothing else runs. Kubernetes alone would wait for longer."""


@pytest.mark.needs(Capability.POWER)
@pytest.mark.named
def test_the_worker_of_a_dead_node_runs_elsewhere_soon_after_the_heartbeat_timeout(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    policy = {"heartbeatTimeoutSeconds": HEARTBEAT_TIMEOUT_SECONDS}
    manifest = jobs.digits(cluster, namespace, epochs=jobs.ENDLESS_EPOCHS, elasticPolicy=policy)
    cluster.apply(manifest, namespace)
    before = jobs.wait_until_training(observation, 2)
    lost = jobs.current_pods(observation)[1]["spec"]["nodeName"]

    cluster.power_off(lost)
    off_since = time.monotonic()
    try:
        observation.wait_for(
            "the worker to run on another node",
            lambda: runs_elsewhere(observation, lost),
            HEARTBEAT_TIMEOUT_SECONDS + BUSY_MACHINE_SECONDS,
        )
        print(f"worker runs elsewhere {time.monotonic() - off_since:.1f} s after its node lost power")
        after = jobs.wait_until_training(observation, 2, beyond_step=0)
    finally:
        cluster.power_on(lost)
    assert after["members"] == before["members"]
    assert after["incarnations"] == [1, 2]
    jobs.assert_one_world_a_round(observation)


def runs_elsewhere(observation: Observation, lost_node: str) -> bool:
    """Worker 1's present Pod runs, and not on the lost node."""
    pods = jobs.current_pods(observation)
    if len(pods) < 2:
        return False
    replacement = pods[1]
    running: bool = replacement.get("status", {}).get("phase") == "Running"
    return running and str(replacement["spec"].get("nodeName")) != lost_node
