"""The main job: it trains, and it goes on training whatever is killed."""

from __future__ import annotations

import re

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation


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

    cluster.delete_pod(namespace, "digits-worker-2-1")
    third = wait_for_round(observation, second["round"] + 1)
    assert third["members"] == [0, 1, 2]
    assert third["incarnations"] == [1, 1, 2]

    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)


@pytest.mark.named
def test_losing_rank_0_of_dlrovers_command_makes_one_new_round_that_goes_on_from_the_checkpoint(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(jobs.in_dlrovers_words(jobs.digits(cluster, namespace, paced=True)), namespace)
    before = jobs.wait_until_training(observation, 2, beyond_step=30)
    ignored = jobs.warning(observation.job("digits"), "LauncherFlagsIgnored")
    assert "--network-check: set the job's spec.nodeCheck.enabled: true" in ignored["message"]

    cluster.delete_pod(namespace, "digits-worker-0-1")
    wait_for_round(observation, before["round"] + 1)
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)

    after = jobs.rendezvous(observation)
    assert after["round"] == before["round"] + 1
    assert after["members"] == before["members"] == [0, 1]
    assert after["incarnations"] == [2, 1]
    resumed = re.search(r"rank 0 of 2: steps (\d+) to", cluster.log(namespace, "digits-worker-0-2"))
    assert resumed, cluster.log(namespace, "digits-worker-0-2")
    assert int(resumed.group(1)) >= 30
    jobs.assert_one_world_a_round(observation)


@pytest.mark.named
def test_stock_torchrun_with_the_dlr_rendezvous_backend_trains(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    torchrun = ("torchrun", "--rdzv-backend=dlr", "--nnodes=2", "--nproc-per-node=1")
    manifest = jobs.digits(cluster, namespace, launcher=torchrun, step_delay_seconds=0)
    cluster.apply(manifest, namespace)

    jobs.wait_until_succeeded(observation)
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    world = jobs.rendezvous(observation)
    assert (world["members"], world["worldSize"]) == ([0, 1], 2)


@pytest.mark.named
def test_the_text_of_a_failure_is_shown_on_the_job(cluster: Cluster, observation: Observation) -> None:
    namespace = observation.namespace
    broken = jobs.digits(cluster, namespace, workers=1, epochs=-1)
    container = broken["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    container["command"] = [*container["command"], "--no-such-option"]
    broken["spec"]["replicaSpecs"]["worker"]["restartCount"] = 0
    cluster.apply(broken, namespace)

    observation.wait_for("the job to fail", lambda: jobs.phase(observation) == "Failed")
    failure = observation.job("digits")["status"]["lastFailure"]
    assert failure["worker"] == "digits-worker-0"
    assert "no-such-option" in str(failure) + str(observation.events()), observation.describe()


def wait_for_round(observation: Observation, number: int) -> Object:
    def formed() -> Object | None:
        world = jobs.rendezvous(observation)
        return world if world.get("round", 0) >= number and world["phase"] == "Formed" else None

    return observation.wait_for(f"round {number}", formed)
