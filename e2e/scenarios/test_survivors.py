"""Processes of one world that live on when a peer dies: FSDP2, HSDP, tensor parallelism, DDP, all_reduce.

DLR_TORCH_NEXT_PYTHON names the `python3` of an environment that has torch 2.14 or newer.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time

import pytest

from e2e import jobs, resized
from e2e.cluster import Capability, Cluster
from e2e.elasticity import scale
from e2e.embedded import CONTROLLER
from e2e.observation import Observation
from e2e.resized import Resized
from e2e.survivors import NAME, RANKS, Survivors

STORM_DEATHS = int(os.environ.get("STORM_DEATHS", "40"))
STORM_SEED = int(os.environ.get("STORM_SEED", "0"))

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.NODE_PROCESSES)


@pytest.mark.parametrize(
    "kind",
    [
        *("fsdp", "hsdp", "tp", "ddp", "plain", "compiled", "accumulated"),
        *("pp", "interleaved", "zero-bubble", "zero-bubble-v", "dual"),
    ],
)
def test_a_killed_process_costs_its_peers_neither_their_processes_nor_a_step(
    cluster: Cluster, observation: Observation, kind: str
) -> None:
    world = Survivors(cluster, observation, kind)
    world.await_steps()
    for victim in (1, 0, 2):
        before, round_ = world.pids(), world.round()
        killed = world.kill(victim)
        observation.wait_for("the next round", lambda: world.round() == round_ + 1)  # noqa: B023
        world.await_steps()
        print(f"{kind}: rank {victim} killed, next step of all after {world.pause(killed):.2f} s")
        after = world.pids()
        assert {rank for rank in range(RANKS) if before[rank] != after[rank]} == {victim}
    world.assert_every_step_is_alike()
    observation.wait_for("the account", lambda: "3 of 4 processes lived on; next step after" in status(world))
    text = status(world)
    assert "Killed 3" in text and "Recovering" not in text, text


def status(world: Survivors) -> str:
    return world.cluster.dlr("job", "status", NAME, "-n", world.observation.namespace)


def test_a_script_whose_first_step_is_another_starts_again_as_a_whole_and_says_why(
    cluster: Cluster, observation: Observation
) -> None:
    world = Survivors(cluster, observation, "first")
    world.await_steps()
    before, round_ = world.pids(), world.round()
    world.kill(1)
    observation.wait_for("the second round after it", lambda: world.round() == round_ + 2)
    world.await_steps()
    assert set(world.pids().values()).isdisjoint(before.values())
    world.assert_every_step_is_alike()
    log = cluster.dlr("job", "logs", NAME, "-n", observation.namespace)
    assert f"no step of round {round_ + 1} has succeeded, into which processes have lived on" in log


def test_a_lost_pod_costs_the_processes_of_others_nothing(cluster: Cluster, observation: Observation) -> None:
    world = Survivors(cluster, observation, "fsdp")
    observation.wait_for(
        "a copy in another Pod",
        lambda: any(
            worker["spec"]["index"] == 1
            and worker["status"].get("agent", {}).get("memory", {}).get("replicatedStep")
            for worker in observation.workers(NAME)
            if "status" in worker
        ),
    )
    before, round_ = world.pids(), world.round()
    world.kill_pod(1)
    observation.wait_for("the next round", lambda: world.round() > round_)
    world.await_steps()
    after = world.pids()
    assert {rank: after[rank] for rank in (0, 1)} == {rank: before[rank] for rank in (0, 1)}
    world.assert_every_step_is_alike()


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_the_pods_that_stay_at_a_planned_change_keep_their_processes(
    cluster: Cluster, observation: Observation, kind: str
) -> None:
    world = Survivors(cluster, observation, kind, grace_seconds=30)
    world.await_steps(50)
    for pod in (1, 0):
        before, round_ = world.pids(), world.round()
        name = jobs.current_pods(observation, NAME)[pod]["metadata"]["name"]
        began = time.time()
        cluster.delete_pod(observation.namespace, name)
        observation.wait_for("the next round", lambda: world.round() > round_)  # noqa: B023
        world.await_steps(50)
        after = world.pids()
        print(f"{kind}: pod {pod} deleted, next step of all after {world.pause(began + 1):.2f} s")
        stay = range(2) if pod else range(2, 4)
        assert {rank: after[rank] for rank in stay} == {rank: before[rank] for rank in stay}
    world.assert_every_step_is_alike()
    assert world.made_again() == 0


@pytest.mark.parametrize("kind", ["fsdp", "ddp", "plain"])
def test_processes_live_on_in_worlds_of_other_sizes(
    cluster: Cluster, observation: Observation, kind: str
) -> None:
    """From four to three and back, in the processes that stay."""
    world = Resized(cluster, observation, kind)
    four = world.await_world(4)
    scale(cluster, observation, 3, resized.NAME)
    three = world.await_world(3, after=four)
    assert world.processes(three) < world.processes(four)
    print(f"{kind}: from 4 to 3, next step of all after {world.pause(three):.2f} s")
    scale(cluster, observation, 4, resized.NAME)
    again = world.await_world(4, after=three)
    assert world.processes(again) > world.processes(three)
    print(f"{kind}: from 3 to 4, next step of all after {world.pause(again):.2f} s")
    world.assert_equal_to_a_replay()


def test_what_is_made_for_one_size_starts_again_in_another_and_says_why(
    cluster: Cluster, observation: Observation
) -> None:
    world = Resized(cluster, observation, "hsdp")
    four = world.await_world(4)
    scale(cluster, observation, 2, resized.NAME)
    two = world.await_world(2, after=four)
    assert world.processes(two).isdisjoint(world.processes(four))
    log = cluster.dlr("job", "logs", resized.NAME, "-n", observation.namespace)
    assert "all processes start again: the process group" in log
    world.assert_equal_to_a_replay()


def test_a_pod_that_is_lost_without_room_for_another_leaves_the_others_their_processes(
    cluster: Cluster, observation: Observation
) -> None:
    """The first one: all others get other ranks, until it is back."""
    world = Resized(cluster, observation, "fsdp", shrinkAfterSeconds=2)
    four = world.await_world(4)
    world.set_room(False)
    world.lose_pod(four, rank=0)
    three = world.await_world(3, after=four)
    assert world.processes(three) < world.processes(four)
    world.set_room(True)
    again = world.await_world(4, after=three)
    assert world.processes(again) > world.processes(three)
    world.assert_equal_to_a_replay()


def test_two_deaths_at_once_and_one_while_the_others_form_cost_nobody_else(
    cluster: Cluster, observation: Observation
) -> None:
    world = Survivors(cluster, observation, "fsdp")
    world.await_steps(20)
    before, round_ = world.pids(), world.round()
    world.kill(1, 2)
    observation.wait_for("the next round", lambda: world.round() > round_)
    world.await_steps(20)
    after = world.pids()
    assert {rank for rank in range(RANKS) if before[rank] != after[rank]} == {1, 2}
    before = after
    world.kill(3)
    world.kill_newcomer(3, before[3])
    world.await_steps(20)
    after = world.pids()
    assert {rank for rank in range(RANKS) if before[rank] != after[rank]} == {3}
    world.assert_every_step_is_alike()


def test_a_process_that_does_not_leave_is_replaced(cluster: Cluster, observation: Observation) -> None:
    world = Survivors(cluster, observation, "ddp")
    world.await_steps(20)
    before = world.pids()
    os.kill(world.host_pids(0)[before[0]], signal.SIGSTOP)
    world.kill(3)
    world.await_steps(20)
    after = world.pids()
    assert {rank for rank in range(RANKS) if before[rank] != after[rank]} == {0, 3}
    world.assert_every_step_is_alike()


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_a_storm_of_deaths_leaves_every_step_as_it_was(cluster: Cluster, observation: Observation) -> None:
    """A tenth of the blows kill two at once, as many the newcomer too, and as many the controller."""
    world, chance = Survivors(cluster, observation, "fsdp"), random.Random(STORM_SEED)
    world.await_steps(20)
    lived, wounded, pauses, deaths, controllers = list[int](), list[int](), list[float](), 0, 0
    while deaths < STORM_DEATHS:
        before, drawn = world.pids(), chance.random()
        victims = chance.sample(range(RANKS), 2 if drawn < 0.1 else 1)
        killed, deaths = world.kill(*victims), deaths + len(victims)
        if 0.8 < drawn < 0.9:
            cluster.control_plane(CONTROLLER).signal(signal.SIGKILL)
            controllers += 1
        if drawn > 0.9:
            world.kill_newcomer(victims[0], before[victims[0]])
            deaths += 1
        world.await_steps(10)
        after = world.pids()
        lived.append(
            RANKS - len(victims) - sum(before[r] != after[r] for r in range(RANKS) if r not in victims)
        )
        pauses.append(world.pause(killed))
        wounded.append(len(victims))
    world.assert_every_step_is_alike()
    whole = sum(count == RANKS - number for count, number in zip(lived, wounded, strict=True))
    print(
        f"{deaths} deaths in {len(lived)} blows, and {controllers} of the controller: next step of all after "
        f"{statistics.median(pauses):.2f} s in the median, {max(pauses):.2f} s at most; in {whole} blows all "
        f"others lived on"
    )
    assert whole >= 0.9 * len(lived)


def test_a_spare_process_saves_its_peers_the_start_of_another(
    cluster: Cluster, observation: Observation
) -> None:
    """A script that begins with five seconds of other work, such as a compilation."""
    world = Survivors(cluster, observation, "fsdp", env={"START_SECONDS": "5"}, spareProcesses=1)
    pauses: list[float] = []
    victims = (1, 2)
    for number, victim in enumerate(victims):
        world.await_spares(victims[:number])
        before, round_ = world.pids(), world.round()
        killed = world.kill(victim)
        observation.wait_for("the next round", lambda: world.round() == round_ + 1)  # noqa: B023
        world.await_steps()
        pauses.append(world.pause(killed))
        print(f"rank {victim} killed, its spare there: next step of all after {pauses[-1]:.2f} s")
        after = world.pids()
        assert {rank for rank in range(RANKS) if before[rank] != after[rank]} == {victim}
    assert max(pauses) < 5, "nobody waited for the script's start"
    world.assert_every_step_is_alike()
