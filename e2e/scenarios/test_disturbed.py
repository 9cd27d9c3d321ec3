"""Three workers on a machine that misbehaves: they learn what they should have."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e import embedded, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.disturbances import SmallDisk, WallClock, agent_pid, stopped
from e2e.keepers import NAME, Training
from e2e.observation import Observation
from e2e.processes import TrainingProcess
from e2e.scenarios.test_leader_election import leader

NODES = 4
WORKERS = 3
STOPPED_SECONDS = 20
"""Longer than the Lease of a controller, and than the heartbeats that a job may miss."""
HOUR_SECONDS = 3_600
FULL = "No space left on device"

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.needs(Capability.STORAGE),
    pytest.mark.needs(Capability.NODE_PROCESSES),
    pytest.mark.needs(Capability.CONTROL_PLANE),
]


def began(training: Training) -> tuple[Object, list[TrainingProcess]]:
    """The world and the training processes, once they make steps."""
    training.wait_for_start(1)
    return jobs.rendezvous(training.observation, NAME), running(training)


def running(training: Training) -> list[TrainingProcess]:
    namespace = training.observation.namespace
    pods = jobs.current_pods(training.observation, NAME)
    return [each for pod in pods for each in training.cluster.training_processes(namespace, pod)]


def assert_undisturbed(training: Training, world: Object, before: list[TrainingProcess]) -> None:
    assert running(training) == before, "training processes were restarted"
    assert jobs.rendezvous(training.observation, NAME)["round"] == world["round"]


def kill(training: Training, index: int) -> None:
    pod = jobs.current_pods(training.observation, NAME)[index]
    training.cluster.kill_process(training.observation.namespace, pod)


def finish(training: Training, killed: int) -> None:
    """End it, and look at what was told: of each world one, and the failures that there were."""
    training.finish()
    status = training.observation.job(NAME)["status"]
    assert status.get("restarts", {}) == ({"Killed": killed} if killed else {}), status
    assert len(jobs.worlds(training.observation, NAME)) == 1 + killed
    jobs.assert_one_world_a_round(training.observation, NAME)


@pytest.mark.parametrize("who", ["training process", "all agents"])
def test_a_process_that_stands_still_for_a_while_costs_nothing_but_that(
    cluster: Cluster, observation: Observation, who: str
) -> None:
    training = Training(cluster, observation, workers=WORKERS)
    world, before = began(training)
    pods = jobs.current_pods(observation, NAME)
    victims = {
        "training process": [before[1].pid],
        "all agents": [agent_pid(pod) for pod in pods],
    }
    step = training.step()
    with stopped(victims[who], STOPPED_SECONDS):
        if who != "training process":
            training.wait_for_step(step + 10)
    training.wait_for_step(training.step() + 10)
    assert_undisturbed(training, world, before)
    assert [pod["metadata"]["uid"] for pod in jobs.current_pods(observation, NAME)] == [
        pod["metadata"]["uid"] for pod in pods
    ]
    finish(training, killed=0)


@contextmanager
def led_by_another(
    cluster: Cluster, observation: Observation, variables: Mapping[str, str]
) -> Iterator[None]:
    """Stop the cluster's own controller, and have one lead that sees the world as it is told to."""
    observation.wait_for("the cluster's own controller to lead", lambda: leader(cluster))
    own = leader(cluster)
    process = cluster.control_plane(embedded.CONTROLLER)
    process.signal(signal.SIGSTOP)
    try:
        with cluster.standby_controller(variables):
            observation.wait_for("the other to lead", lambda: leader(cluster) not in ("", own))
            yield
    finally:
        process.signal(signal.SIGCONT)  # it begins anew
    observation.wait_for("the cluster's own controller to lead again", lambda: leader(cluster) == own)


@pytest.fixture
def disk(cluster: Cluster, tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk") as made:
        yield made


def test_a_disk_that_is_full_of_others_files_has_checkpoints_wait_and_training_go_on(
    disk: SmallDisk, cluster: Cluster, observation: Observation
) -> None:
    variables = {"CHECKPOINTS": str(disk.folder / "checkpoints"), "PERSIST_EVERY": "5"}
    training = Training(cluster, observation, workers=WORKERS, variables=variables)
    world, before = began(training)
    training.wait("a checkpoint", lambda: any((disk.folder / "checkpoints").glob("step-*")))
    disk.fill()

    def warning() -> Object | None:
        found = jobs.warning(observation.job(NAME), "CheckpointsFailing")
        return found if FULL in found.get("message", "") else None

    print(observation.wait_for("the job to tell of the disk", warning)["message"])
    training.wait_for_step(training.step() + 10)
    assert_undisturbed(training, world, before)
    kill(training, 1)
    training.wait_for_start(2)
    disk.free()
    training.wait("the job to tell no more of it", lambda: not warning())
    finish(training, killed=1)


def test_a_clock_that_jumps_on_the_workers_costs_nothing(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    clock = WallClock(tmp_path)
    training = Training(cluster, observation, workers=WORKERS, variables=clock.variables)
    world, before = began(training)
    clock.jump(HOUR_SECONDS)
    training.wait_for_step(training.step() + 80)
    assert_undisturbed(training, world, before)
    reached = training.step()
    kill(training, 1)
    resumed = training.wait_for_start(2)
    assert resumed[0] == resumed[1] >= reached - 1
    clock.jump(0)
    training.wait_for_step(training.step() + 20)
    finish(training, killed=1)
    account = observation.job(NAME)["status"]["goodput"]
    print(account)
    assert account["seconds"]["Training"] >= account["steppingSeconds"], account
    assert account["seconds"]["Recovering"] > 0, account


def leaders_offset(cluster: Cluster) -> float:
    """Seconds by which the leader's clock, as its Lease shows it, is ahead of this machine's."""
    renewed = datetime.fromisoformat(cluster.controllers_lease()["renewTime"])
    return (renewed - datetime.now(UTC)).total_seconds()


def test_a_clock_that_jumps_below_the_controller_costs_nothing(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    clock, seconds = WallClock(tmp_path), -HOUR_SECONDS
    with led_by_another(cluster, observation, clock.variables):
        training = Training(cluster, observation, workers=WORKERS)
        world, before = began(training)
        clock.jump(seconds)
        observation.wait_for(
            "the leader's clock to be wrong", lambda: abs(leaders_offset(cluster) - seconds) < 60
        )
        training.wait_for_step(training.step() + 80)
        assert_undisturbed(training, world, before)
        kill(training, 1)
        training.wait_for_start(2)
        clock.jump(0)
        kill(training, 2)
        training.wait_for_start(3)
        finish(training, killed=2)
        print(observation.job(NAME)["status"]["goodput"])
