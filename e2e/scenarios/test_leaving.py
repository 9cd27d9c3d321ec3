"""Leaving by vote, with `Checkpointer` in examples/memory: a planned change costs no step, whatever it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from e2e import elasticity, jobs
from e2e.api import Kind
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "leaver"
GRACE_SECONDS = 40
"""A saver that was just started imports torch, which takes 13 s on two cores with a load of 13."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "memory" / "train.py"

pytestmark = pytest.mark.needs(Capability.STORAGE)


class Leaver:
    """A job of the example, and what it has written."""

    def __init__(self, cluster: Cluster, observation: Observation) -> None:
        self.cluster, self.observation = cluster, observation
        self.folder = Path(cluster.storage(observation.namespace).path)

    def submit(
        self, *, workers: int = 3, sharded: bool = False, patience_seconds: int = 0, **more: Any
    ) -> None:
        """Submit the job.

        Args:
            patience_seconds: its evictionPatienceSeconds; 0: evictions are not prepared.
            more: arguments of `jobs.scripted`.
        """
        storage = self.cluster.storage(self.observation.namespace)
        script = f"{self.cluster.examples}/memory/train.py"
        variables = {
            "OUT": str(self.folder),
            "STEPS": "100000",
            "STEP_SECONDS": "0.05",
            "SHARDED": str(int(sharded)),
        }
        manifest = jobs.scripted(
            self.cluster,
            NAME,
            workers,
            ["dlr", "run", script],
            storage=storage,
            env=variables,
            worker={"memoryCheckpoint": {"size": "16Mi", "replicas": 1}},
            # Who comes late, and a replacement, is waited for.
            elasticPolicy={
                **elasticity.POLICY,
                "lastCallSeconds": 60,
                "shrinkAfterSeconds": 60,
                "evictionPatienceSeconds": patience_seconds,
            },
            **more,
        )
        elasticity.bounded(manifest, 2, workers)
        pod = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = GRACE_SECONDS
        self.cluster.apply(manifest, self.observation.namespace)

    def steps(self) -> list[dict[str, Any]]:
        """Return the lines about each step by the rank 0 of its time."""
        file = self.folder / "steps.jsonl"
        lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def train(self, workers: int, *, steps: int = 10) -> None:
        """Wait until so many workers have made so many steps more."""
        made = len(self.steps())

        def trained() -> bool:
            fresh = self.steps()[made:]
            return [step["world"] for step in fresh].count(workers) >= steps

        self.observation.wait_for(f"{steps} steps of {workers} workers", trained)

    def assert_no_step_was_lost(self) -> None:
        """Ends the job; call it last."""
        steps = self.steps()
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1)), "a step was made again"
        job = self.observation.job(NAME)["status"]
        assert job.get("lastFailure", {}).get("exitClass") in (None, "Killed", "Preempted"), "a Pod, at most"
        assert not (job.get("failureBudget") or {}).get("spent"), job["failureBudget"]
        print(f"{len(steps)} steps, none made again, in these worlds:")
        print(*elasticity.worlds(self.observation, NAME), sep="\n")

        # Each rank is a session. Where the kernel shares a core by sessions (autogroups), the plain process,
        # which is in pytest's, would have a twentieth of it beside them.
        self.cluster.kubectl("delete", "ej", NAME, "-n", self.observation.namespace)
        self.observation.wait_for("all Pods to go", lambda: not self.observation.pods())
        assert [step["loss"] for step in steps] == pytest.approx(self.undisturbed(len(steps)), rel=1e-3)

    def undisturbed(self, steps: int) -> list[float]:
        """The losses of one plain process, without dlr. Only the test's own limit bounds it: see above."""
        with TemporaryDirectory() as folder:
            variables = {"OUT": folder, "STEPS": str(steps), "STEP_SECONDS": "0", "OMP_NUM_THREADS": "1"}
            environ = {**os.environ, **variables}
            subprocess.run([sys.executable, str(EXAMPLE)], env=environ, check=True)
            lines = (Path(folder) / "steps.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def departures(self) -> dict[int, set[int]]:
        """The steps after which workers reported that they had left, by round."""
        found: dict[int, set[int]] = {}
        for version in self.observation.history[Kind.WORKER]:
            if departure := (version.get("status", {}).get("agent") or {}).get("departure"):
                found.setdefault(departure["round"], set()).add(departure["step"])
        return found


@pytest.fixture
def leaver(cluster: Cluster, observation: Observation) -> Leaver:
    return Leaver(cluster, observation)


@pytest.mark.named
def test_another_count_costs_no_step(cluster: Cluster, observation: Observation, leaver: Leaver) -> None:
    leaver.submit()
    leaver.train(3)

    elasticity.scale(cluster, observation, 2, NAME)
    scaled_at = time.monotonic()
    leaver.train(2)
    print(f"3 → 2: ten steps more after {ago(scaled_at)}")

    elasticity.scale(cluster, observation, 3, NAME)
    leaver.train(3)
    worlds = elasticity.worlds(observation, NAME)
    assert [len(world.members) for world in worlds][-3:] == [3, 2, 3]
    assert sorted(leaver.departures()) == [world.round for world in worlds[:-1]]
    assert all(len(steps) == 1 for steps in leaver.departures().values())
    leaver.assert_no_step_was_lost()


def test_another_count_of_shards_costs_no_step(
    cluster: Cluster, observation: Observation, leaver: Leaver
) -> None:
    """Leave with FSDP2, where each count of workers cuts the state differently."""
    leaver.submit(workers=4, sharded=True)
    leaver.train(4)
    for workers in (3, 4):
        elasticity.scale(cluster, observation, workers, NAME)
        leaver.train(workers)
    assert [len(world.members) for world in elasticity.worlds(observation, NAME)][-3:] == [4, 3, 4]
    leaver.assert_no_step_was_lost()


DRAIN = ["drain", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=240s"]


def suspend(cluster: Cluster, observation: Observation, suspended: bool) -> None:
    patch = json.dumps({"spec": {"suspend": suspended}})
    cluster.kubectl("patch", "ej", NAME, "--type=merge", "-p", patch, "-n", observation.namespace)


def ago(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"
