"""The main job: it trains, and it goes on training whatever is killed."""

from __future__ import annotations

import re

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

SAVE_EVERY_STEPS = 10


@pytest.mark.named
def test_digits_train_through_a_killed_process_and_a_deleted_pod(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(jobs.digits(cluster, namespace, workers=3, paced=True), namespace)
    first = jobs.wait_until_training(observation, 3)

    cluster.kill_process(namespace, jobs.current_pods(observation)[1])
    second = wait_for_round(observation, first["round"] + 1)
    assert second["members"] == [0, 1, 2]
    assert second["incarnations"] == first["incarnations"], "a killed process is started again in its Pod"
    jobs.wait_until_training(observation, 3, beyond_step=max(jobs.steps(observation)))

    cluster.delete_pod(namespace, "digits-worker-0-1")  # rank 0's is no exception
    third = wait_for_round(observation, second["round"] + 1)
    assert third["members"] == [0, 1, 2]
    assert third["incarnations"] == [2, 1, 1]

    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    log = cluster.log(namespace, "digits-worker-0-2")
    resumed = re.search(r"rank 0 of 3: steps (\d+) to", log)
    assert resumed, log
    assert int(resumed.group(1)) >= SAVE_EVERY_STEPS, "it goes on from the checkpoint"
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)


def wait_for_round(observation: Observation, number: int) -> Object:
    def formed() -> Object | None:
        world = jobs.rendezvous(observation)
        return world if world.get("round", 0) >= number and world["phase"] == "Formed" else None

    return observation.wait_for(f"round {number}", formed)
