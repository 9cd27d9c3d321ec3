"""A job of four processes in two Pods that live on when a peer dies: who writes what, and who is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from agent.torch_compat.versions import can_reform_groups
from e2e import jobs, processes
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

NAME = "survivors"
RANKS = 4
FIXTURE = Path(__file__).parent / "fixtures" / "survivors.py"


def environment_with_torch() -> Path:
    """The environment whose torch can form groups again."""
    python = os.environ.get("DLR_TORCH_NEXT_PYTHON")
    if python is None:
        assert can_reform_groups(torch.__version__), "name a python3 with torch 2.14 in DLR_TORCH_NEXT_PYTHON"
        python = sys.executable
    return Path(python).parents[1]


class Survivors:
    """A job of four processes in two Pods."""

    def __init__(
        self,
        cluster: Cluster,
        observation: Observation,
        kind: str,
        *,
        env: Mapping[str, str] | None = None,
        grace_seconds: int = 5,
        **policy: int,
    ) -> None:
        self.cluster, self.observation = cluster, observation
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path)
        variables = {"FOLDER": storage.path, "KIND": kind, "STEPS": "100000"}
        launcher = ["dlr", "run", "--nproc-per-node", "2", str(FIXTURE)]
        manifest = jobs.scripted(
            cluster,
            NAME,
            2,
            launcher,
            storage=storage,
            env={**variables, "PATH": f"{environment_with_torch()}/bin:{os.environ['PATH']}", **(env or {})},
            resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
            grace_seconds=grace_seconds,
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

    def newcomer(self, rank: int, before: int) -> int | None:
        """The process here, by its id inside, that has come to the loop of that rank since another one."""
        ready = [int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"ready-{rank}-*")]
        newest = max(ready, key=lambda pid: (self.folder / f"ready-{rank}-{pid}").stat().st_mtime_ns)
        return None if newest == before else newest

    def kill_newcomer(self, rank: int, before: int) -> None:
        """Kill the process that takes the place of another, as soon as it comes to its loop."""
        inside = self.observation.wait_for("the newcomer", lambda: self.newcomer(rank, before))
        with suppress(ProcessLookupError, KeyError):
            os.kill(self.host_pids(rank // 2)[inside], signal.SIGKILL)

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
        times = [[float(line["at"]) for line in self.lines(rank) if "at" in line] for rank in range(RANKS)]
        return max(min(at for at in of_rank if at > since) for of_rank in times) - since

    def assert_every_step_is_alike(self) -> None:
        """A step that was made again had the same loss, and no step is missing."""
        for rank in range(RANKS):
            losses: dict[int, float] = {}
            for line in self.lines(rank):
                if "step" in line:
                    assert losses.setdefault(line["step"], line["loss"]) == line["loss"], (rank, line)
            assert sorted(losses) == list(range(max(losses) + 1))

    def made_again(self) -> int:
        """How often a step was made again, by the rank with the most."""
        steps = [[line["step"] for line in self.lines(rank) if "step" in line] for rank in range(RANKS)]
        return max(len(each) - len(set(each)) for each in steps)
