"""Processes of one world that live on when a peer dies: FSDP2, HSDP, tensor parallelism, DDP, all_reduce.

They need torch 2.14 or newer.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from e2e import jobs, processes
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "survivors"
RANKS = 4
FIXTURE = Path(__file__).parents[1] / "fixtures" / "survivors.py"

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.NODE_PROCESSES)


class Survivors:
    """A job of four processes in two Pods."""

    def __init__(self, cluster: Cluster, observation: Observation, kind: str, **policy: object) -> None:
        self.cluster, self.observation = cluster, observation
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path)
        variables = {"FOLDER": storage.path, "KIND": kind, "STEPS": "100000"}
        launcher = [*python_prefix(), "dlr", "run", "--nproc-per-node", "2", str(FIXTURE)]
        manifest = jobs.scripted(
            cluster,
            NAME,
            2,
            launcher,
            storage=storage,
            env={**variables, **{key: str(value) for key, value in policy.pop("env", {}).items()}},
            resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
            grace_seconds=5,
            worker={"memoryCheckpoint": {"size": "64Mi", "replicas": 1}},
            elasticPolicy=jobs.QUICK_REPORTS | policy,
            runPolicy=jobs.KEEP_PODS,
        )
        cluster.apply(manifest, observation.namespace)

    def lines(self, rank: int) -> list[Object]:
        path = self.folder / f"rank-{rank}"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def pids(self) -> dict[int, int]:
        """The process of each rank that wrote last."""
        return {rank: lines[-1]["pid"] for rank in range(RANKS) if (lines := self.lines(rank))}

    def await_steps(self, more: int = 5) -> None:
        before = [len(self.lines(rank)) for rank in range(RANKS)]
        self.observation.wait_for(
            "steps of all ranks",
            lambda: all(len(self.lines(rank)) >= before[rank] + more for rank in range(RANKS)),
        )

    def host_pids(self, pod: int) -> dict[int, int]:
        """The processes of a Pod: their ids here, by their ids inside."""
        uid = jobs.current_pods(self.observation, NAME)[pod]["metadata"]["uid"]
        ours = [pid for pid in processes.all_pids() if processes.environment(pid).get("DLR_POD_UID") == uid]
        return {processes.number_inside(pid): pid for pid in ours}

    def kill(self, *ranks: int) -> float:
        """Kill the processes of ranks, all at once; return when, by the clock."""
        inside = self.pids()
        victims = [self.host_pids(rank // 2)[inside[rank]] for rank in ranks]
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        return time.time()

    def kill_pod(self, pod: int) -> None:
        """Kill all of a Pod, its agent too, as when the kernel kills its cgroup: none sees another end."""
        pids = self.host_pids(pod).values()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def await_spares(self, kills: Sequence[int]) -> None:
        """Wait until each rank trains, and has a spare that has come to its loop.

        Args:
            kills: ranks of the processes that were killed so far.
        """
        self.await_steps()
        self.observation.wait_for(
            "the spares",
            lambda: all(
                len(list(self.folder.glob(f"ready-{rank}-*"))) == 2 + kills.count(rank)
                for rank in range(RANKS)
            ),
        )

    def round(self) -> int:
        return int(jobs.rendezvous(self.observation, NAME)["round"])

    def pause(self, since: float) -> float:
        """Seconds from a time to the next step of the last rank."""
        return (
            max(min(line["at"] for line in self.lines(rank) if line["at"] > since) for rank in range(RANKS))
            - since
        )

    def assert_every_step_is_alike(self) -> None:
        """A step that was made again had the same loss, and no step is missing."""
        for rank in range(RANKS):
            losses: dict[int, float] = {}
            for line in self.lines(rank):
                if "step" in line:
                    assert losses.setdefault(line["step"], line["loss"]) == line["loss"], (rank, line)
            assert sorted(losses) == list(range(max(losses) + 1))


def python_prefix() -> list[str]:
    return []


@pytest.mark.parametrize("kind", ["fsdp", "hsdp", "tp", "ddp", "plain"])
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
    said = status(world)
    assert "Killed 3" in said and "Recovering" not in said, said


def status(world: Survivors) -> str:
    return world.cluster.dlr("job", "status", NAME, "-n", world.observation.namespace)


def test_a_lost_pod_costs_the_processes_of_others_nothing(cluster: Cluster, observation: Observation) -> None:
    world = Survivors(cluster, observation, "fsdp")
    world.await_steps()
    before, round_ = world.pids(), world.round()
    world.kill_pod(1)
    observation.wait_for("the next round", lambda: world.round() > round_)
    world.await_steps()
    after = world.pids()
    assert {rank: after[rank] for rank in (0, 1)} == {rank: before[rank] for rank in (0, 1)}
    world.assert_every_step_is_alike()


def test_a_spare_process_saves_its_peers_the_start_of_another(
    cluster: Cluster, observation: Observation
) -> None:
    """A script that begins with five seconds of other work, such as a compilation."""
    world = Survivors(cluster, observation, "fsdp", env={"START_SECONDS": 5}, spareProcesses=1)
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
