"""The control plane may die or hang at any time, and training does not notice."""

from __future__ import annotations

import signal
import time

import pytest

from e2e import embedded, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster, ControlPlaneProcess
from e2e.observation import Observation
from e2e.processes import TrainingProcess

API_OUTAGE_SECONDS = 40


def everything_that_trains(cluster: Cluster, observation: Observation) -> list[TrainingProcess]:
    """Every training process of the job, by worker."""
    pods = jobs.current_pods(observation)
    return [process for pod in pods for process in cluster.training_processes(observation.namespace, pod)]


def kill_and_await_the_next(process: ControlPlaneProcess, observation: Observation) -> None:
    """SIGKILL; the supervisor starts another."""
    killed = process.pid()
    process.signal(signal.SIGKILL)
    observation.wait_for("the next process", lambda: process.pid() not in (None, killed))


def assert_undisturbed(
    cluster: Cluster, observation: Observation, world: Object, processes: list[TrainingProcess]
) -> None:
    assert everything_that_trains(cluster, observation) == processes, "training processes were restarted"
    assert jobs.rendezvous(observation)["round"] == world["round"]


@pytest.mark.needs(Capability.CONTROL_PLANE)
@pytest.mark.named
def test_killing_the_controller_and_the_api_server_restarts_no_training_process(
    cluster: Cluster, observation: Observation
) -> None:
    manifest = jobs.digits(cluster, observation.namespace, step_delay_seconds=0.1, paced=True)
    cluster.apply(manifest, observation.namespace)
    world = jobs.wait_until_training(observation, 2)
    before = everything_that_trains(cluster, observation)
    assert len(before) == 2

    for name in (embedded.CONTROLLER, embedded.API_SERVER):
        kill_and_await_the_next(cluster.control_plane(name), observation)
        step = max(jobs.steps(observation))
        jobs.wait_until_training(observation, 2, beyond_step=step)
        assert_undisturbed(cluster, observation, world, before)

    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    assert jobs.rendezvous(observation)["round"] == world["round"]
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_an_api_server_that_hangs_restarts_no_training_process(
    cluster: Cluster, observation: Observation
) -> None:
    delay_seconds = 0.2
    manifest = jobs.digits(
        cluster, observation.namespace, epochs=20, step_delay_seconds=delay_seconds, paced=True
    )
    cluster.apply(manifest, observation.namespace)
    world = jobs.wait_until_training(observation, 2)
    before = everything_that_trains(cluster, observation)
    step = max(jobs.steps(observation))

    api_server = cluster.control_plane(embedded.API_SERVER)
    api_server.signal(signal.SIGSTOP)
    try:
        time.sleep(API_OUTAGE_SECONDS)  # the length of the outage is the scenario
    finally:
        api_server.signal(signal.SIGCONT)

    possible = API_OUTAGE_SECONDS / delay_seconds
    jobs.wait_until_training(observation, 2, beyond_step=step + int(possible / 2))
    assert_undisturbed(cluster, observation, world, before)
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    assert jobs.rendezvous(observation)["round"] == world["round"]


@pytest.mark.needs(Capability.WHOLE_CRASH)
def test_a_job_outlives_the_crash_of_the_whole_cluster(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.digits(cluster, observation.namespace, step_delay_seconds=0.1, paced=True)
    cluster.apply(manifest, observation.namespace)
    before = jobs.wait_until_training(observation, 2)
    uid = observation.job("digits")["metadata"]["uid"]

    cluster.crash()
    jobs.hurry(cluster, observation)

    jobs.wait_until_succeeded(observation)
    assert observation.job("digits")["metadata"]["uid"] == uid
    assert jobs.rendezvous(observation)["round"] > before["round"]
    assert jobs.accuracy(cluster, observation) >= jobs.GOOD_ACCURACY
    jobs.assert_one_world_a_round(observation)
