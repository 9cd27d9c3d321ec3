"""examples/stream: each sample of an epoch once, in one order, whatever happens to the workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e import elasticity, jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "stream"
EXAMPLE = Path(__file__).parents[2] / "examples" / "stream" / "train.py"
EPOCHS = 2
FILES = 100

pytestmark = [pytest.mark.needs(Capability.STORAGE)]


def steps_in(folder: Path) -> dict[int, dict[str, Any]]:
    """Return rank 0's last line about each step; a repeated step has several."""
    file = folder / "steps.jsonl"
    lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    steps = (json.loads(line) for line in lines)
    return {step["step"]: step for step in steps}


def submit(cluster: Cluster, observation: Observation) -> Path:
    storage = cluster.storage(observation.namespace)
    manifest = jobs.scripted(
        cluster,
        NAME,
        3,
        ["dlr", "run", f"{cluster.examples}/stream/train.py"],
        storage=storage,
        env={"OUT": storage.path, "EPOCHS": str(EPOCHS)},
        worker={"memoryCheckpoint": {"size": "16Mi", "replicas": 1}},
        elasticPolicy={**elasticity.POLICY, "shrinkAfterSeconds": 60},
    )
    elasticity.bounded(manifest, 2, 4)
    manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 40
    cluster.apply(manifest, observation.namespace)
    return Path(storage.path)


def undisturbed(folder: Path) -> dict[int, dict[str, Any]]:
    """The steps of one plain process, without dlr, over the same files; the test's own limit bounds it."""
    variables = {"OUT": str(folder), "EPOCHS": str(EPOCHS), "STEP_SECONDS": "0", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(EXAMPLE)], env={**os.environ, **variables}, check=True)
    return steps_in(folder)


def test_three_workers_two_and_four_with_five_kills_learn_from_each_sample_once_an_epoch(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    folder = submit(cluster, observation)

    def train(workers: int, steps: int = 5) -> None:
        """Until so many workers have made so many steps more."""
        made = max(steps_in(folder), default=0)

        def trained() -> bool:
            fresh = [step for number, step in steps_in(folder).items() if number > made]
            return [step["world"] for step in fresh].count(workers) >= steps

        observation.wait_for(f"{steps} steps of {workers} workers", trained)

    def kill(rank: int, workers: int) -> None:
        cluster.kill_process(observation.namespace, jobs.current_pods(observation, NAME)[rank])
        train(workers)

    train(3)
    kill(1, 3)
    kill(0, 3)
    elasticity.scale(cluster, observation, 2, NAME)
    train(2)
    kill(1, 2)
    elasticity.scale(cluster, observation, 4, NAME)
    train(4)
    kill(3, 4)
    kill(0, 4)
    jobs.wait_until_succeeded(observation, NAME)

    steps, expected = steps_in(folder), undisturbed(tmp_path)
    assert [step["samples"] for _, step in sorted(steps.items())] == [
        step["samples"] for step in expected.values()
    ]
    for epoch in range(EPOCHS):
        samples = [name for step in steps.values() if step["epoch"] == epoch for name in step["samples"]]
        assert len(samples) == len(set(samples))
        assert len({name.partition(":")[0] for name in samples}) == FILES
    assert {step["world"] for step in steps.values()} == {2, 3, 4}
    losses = [(step["loss"], expected[number]["loss"]) for number, step in steps.items()]
    assert [ours for ours, _ in losses] == pytest.approx([theirs for _, theirs in losses], rel=1e-2)
