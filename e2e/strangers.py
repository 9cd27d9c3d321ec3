"""Jobs of fixtures/strangers: scripts that know nothing of dlr, in a Python that has nothing of it.

For backends where Pods are processes of this machine, so that a virtual environment is what an image is.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Cluster
from e2e.observation import Observation

SCRIPTS = Path(__file__).parent / "fixtures" / "strangers"
SAMPLE_SECONDS = "0.05"
STEPS = 5
"""Steps in a row after which the job counts as training."""
RESTART_SECONDS = 280
"""Several times what a restart in place takes; the time-outs of what could be waited for are longer."""
BARE_PATH = os.defpath
"""PATH without any virtual environment."""


@dataclass(frozen=True)
class Restart:
    """The time from rank 0's last step before a kill to its first one after it."""

    first_start_seconds: float
    """Seconds from the job's creation to the first step, for comparison."""
    seconds: float
    steps_lost: int


class Stranger:
    """One job of one script."""

    def __init__(self, cluster: Cluster, observation: Observation, name: str) -> None:
        self.cluster = cluster
        self.observation = observation
        self.name = name
        self.folder = Path(cluster.storage(observation.namespace).path) / name
        self.folder.mkdir()
        self.snapshot = self.folder / "snapshot"

    def submit(
        self,
        command: Sequence[str],
        *,
        workers: int = 1,
        variables: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
        **spec: Any,
    ) -> None:
        """A job that trains slowly, until `finish`."""
        env = {
            "FIGURES": str(self.folder),
            "HURRY": str(self.folder / "hurry"),
            "SAMPLE_SECONDS": SAMPLE_SECONDS,
            "PATH": BARE_PATH,
            **(variables or {}),
        }
        manifest = jobs.scripted(self.cluster, self.name, workers, command, env=env, grace_seconds=1, **spec)
        if working_directory is not None:
            (container,) = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
            container["workingDir"] = str(working_directory)
        self.cluster.apply(manifest, self.observation.namespace)

    def survive_a_kill(self, *, victim: int, local_rank: int = 0) -> Restart:
        """Kill a training process while it trains, after a checkpoint, and see the job through to its end."""
        self.wait_for_checkpoint()
        before = self.wait_for_steps(STEPS)
        world = jobs.rendezvous(self.observation, self.name)
        pod = jobs.current_pods(self.observation, self.name)[victim]
        self.cluster.kill_process(self.observation.namespace, pod, local_rank)
        after = self.wait_for_steps(STEPS, not_by=before[-1]["pid"])
        then = jobs.rendezvous(self.observation, self.name)
        self.finish()

        assert then["round"] == world["round"] + 1, self.observation.describe()
        assert then["members"] == world["members"]
        assert then["incarnations"] == world["incarnations"], "it is restarted in its Pod"
        self.assert_forked(starts=2, world=then["worldSize"])
        jobs.assert_one_world_a_round(self.observation, self.name)
        old = [line for line in self.lines(0) if "step" in line and line["pid"] == before[-1]["pid"]]
        created = self.observation.job(self.name)["metadata"]["creationTimestamp"]
        restart = Restart(
            first_start_seconds=old[0]["time"] - jobs.unix_time(created),
            seconds=after[0]["time"] - old[-1]["time"],
            steps_lost=old[-1]["step"] + 1 - after[0]["step"],
        )
        print(f"{self.name}: {restart}, loss {self.loss():.3f}")
        assert restart.seconds < RESTART_SECONDS, "it waited for a time-out"
        assert after[0]["step"] > 1, "it goes on from its snapshot"
        return restart

    def hang(self, *, rank: int) -> Object:
        """Have the storage of one rank not answer any more, until a hang is found; the job's last failure."""
        self.wait_for_steps(STEPS)
        stuck = self.folder / f"stuck-{rank}"
        stuck.touch()

        def found() -> Object | None:
            failure: Object = self.observation.job(self.name)["status"].get("lastFailure") or {}
            return failure if failure.get("exitClass") == "Hang" and failure.get("rank") == rank else None

        failure = self.observation.wait_for(f"rank {rank} to be blamed for the hang", found)
        stuck.unlink()
        return failure

    def finish(self) -> None:
        """Have it read its samples as fast as it can, until it has succeeded."""
        (self.folder / "hurry").touch()
        jobs.wait_until_succeeded(self.observation, self.name)

    def own_goodput(self) -> float:
        """Return the goodput by its own log: steps kept × seconds a step ÷ its time since submission."""
        status = self.observation.job(self.name)
        begun = jobs.unix_time(status["metadata"]["creationTimestamp"])
        ended = jobs.unix_time(status["status"]["completionTime"])
        steps = [line for line in self.lines(0) if "step" in line]
        starts = [list(start) for _, start in itertools.groupby(steps, key=lambda line: line["pid"])]
        timed = sum(start[-1]["step"] - start[0]["step"] for start in starts)
        seconds = sum(start[-1]["time"] - start[0]["time"] for start in starts)
        numbers = [line["step"] for line in steps]
        kept = max(numbers) - min(numbers) + 1
        return float(kept * seconds / timed / (ended - begun))

    def own_steps_redone(self) -> int:
        numbers = [line["step"] for line in self.lines(0) if "step" in line]
        return len(numbers) - len(set(numbers))

    def reported_goodput(self) -> float:
        return float(self.observation.job(self.name)["status"]["goodput"]["ratio"])

    def assert_forked(self, *, starts: int, world: int) -> None:
        """Each process of the job came from a warm parent: torch was in it before its script's first line."""
        for rank in range(world):
            found = [line for line in self.lines(rank) if "start" in line]
            assert [line["world"] for line in found] == [world] * starts
            assert all(line["torch_was_imported"] for line in found), found

    def wait_for_steps(self, count: int, *, not_by: int | None = None) -> list[Object]:
        """The newest process of rank 0, which is not the given one, has made so many; its steps."""

        def made() -> list[Object] | None:
            if jobs.phase(self.observation, self.name) in ("Failed", "Succeeded"):
                raise AssertionError(f"{self.name} has ended\n{self.observation.describe()}\n{self.log()}")
            steps = [line for line in self.lines(0) if "step" in line]
            own = [line for line in steps if line["pid"] == steps[-1]["pid"]]
            return own if len(own) >= count and own[-1]["pid"] != not_by else None

        return self.observation.wait_for(f"{self.name} to make {count} steps", made)

    def wait_for_checkpoint(self) -> None:
        def saved() -> bool:
            return any("saved" in line for line in self.lines(0))

        self.observation.wait_for(f"{self.name} to have saved", saved)

    def lines(self, rank: int) -> list[Object]:
        """Return the notes of a rank's processes (fixtures/strangers/figures.py)."""
        file = self.folder / f"rank-{rank}.jsonl"
        complete, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
        return [json.loads(line) for line in complete.splitlines()]

    def loss(self) -> float:
        """Return the loss that rank 0 noted at its end."""
        return float(next(line["loss"] for line in self.lines(0) if "loss" in line))

    def log(self, index: int = 0) -> str:
        pod = jobs.current_pods(self.observation, self.name)[index]["metadata"]["name"]
        return self.cluster.log(self.observation.namespace, pod)
