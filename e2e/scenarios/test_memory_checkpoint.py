"""Checkpoints in the agents' memory: what a killed process, a lost Pod and a flipped bit cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.fixtures import keeper
from e2e.observation import Observation

NAME = "keeper"
SCRIPT = Path(keeper.__file__)


class Training:
    """A job of two workers whose processes keep each step, and what they wrote."""

    def __init__(self, cluster: Cluster, observation: Observation) -> None:
        self.cluster = cluster
        self.observation = observation
        storage = cluster.storage(observation.namespace)
        self.folder = Path(storage.path) / NAME
        self.folder.mkdir()
        manifest = jobs.scripted(
            cluster,
            NAME,
            2,
            ["dlr", "run", str(SCRIPT)],
            storage=storage,
            env={"KEEPER": str(self.folder)},
            grace_seconds=2,
            worker={"memoryCheckpoint": {"size": "16Mi", "replicas": 1}},
            elasticPolicy=jobs.QUICK_REPORTS,
        )
        cluster.apply(manifest, observation.namespace)

    def entries(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"rank-{rank}.jsonl"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def reached(self, start: int) -> int:
        """The highest step that any rank made between this start of its processes (1, 2, …) and the next."""
        return max(step for rank in range(2) for step in self._steps(rank, start))

    def _steps(self, rank: int, start: int) -> Iterator[int]:
        starts = 0
        for entry in self.entries(rank):
            starts += "resumed" in entry
            if starts == start:
                yield entry.get("step", 0)

    def resumed(self, rank: int) -> list[int]:
        """What its processes went on from, one after the other."""
        return [entry["resumed"] for entry in self.entries(rank) if "resumed" in entry]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        self.observation.wait_for(what, lambda: condition() or None)

    def wait_for_start(self, number: int) -> tuple[int, int]:
        """Wait until processes were started so often and have made three steps; what they went on from."""
        self.wait(f"start {number}", lambda: all(len(self.resumed(rank)) == number for rank in range(2)))
        before = self.resumed(0)[-1]
        self.wait("three more steps", lambda: self.entries(0)[-1].get("step", 0) >= before + 3)
        return self.resumed(0)[-1], self.resumed(1)[-1]

    def wait_until_told(self, step: int, tier: str) -> None:
        """What its newest world goes on from is in the job's status, too, once rank 0's agent has told."""
        expected = {"step": step, "tier": tier}
        self.wait(f"{expected} to be told", lambda: self.told() == expected)

    def told(self) -> Object | None:
        resume: Object | None = jobs.rendezvous(self.observation, NAME).get("resume")
        return resume

    def messages(self, reason: str) -> list[str]:
        return [event["message"] for event in self.observation.events(reason=reason, of=NAME)]


def test_whatever_is_lost_training_goes_on_from_memory_and_ends_as_if_nothing_had_happened(
    cluster: Cluster, observation: Observation
) -> None:
    if Capability.STORAGE not in cluster.capabilities:
        pytest.skip("what the processes write has to be seen here")
    namespace = observation.namespace
    training = Training(cluster, observation)
    training.wait_for_start(1)

    cluster.kill_process(namespace, jobs.current_pods(observation, NAME)[1])
    resumed = training.wait_for_start(2)
    assert resumed[0] == resumed[1] >= training.reached(start=1) - 1, "at most one step is made again"
    training.wait_until_told(resumed[0], "memory")
    told = f"round 2 goes on from memory, step {resumed[0]}"
    training.wait("the Event", lambda: told in training.messages("TrainingResumed"))

    reached = training.reached(start=2)
    cluster.delete_pod(namespace, f"{NAME}-worker-0-1")  # rank 0's is no exception
    resumed = training.wait_for_start(3)
    assert resumed[0] == resumed[1] >= reached - 1
    training.wait_until_told(resumed[0], "peer")

    (training.folder / "damage-1").touch()
    training.wait("the kill", lambda: not (training.folder / "damage-1").exists())
    resumed = training.wait_for_start(4)
    assert resumed[0] == resumed[1] > 0
    training.wait("the Event", lambda: bool(training.messages("CheckpointDamaged")))
    budget = observation.job(NAME)["status"]["failureBudget"]
    assert not budget.get("spent"), "a damaged checkpoint is nobody's fault"

    (training.folder / "end").touch()
    jobs.wait_until_succeeded(observation, NAME)
    result = json.loads((training.folder / "result.json").read_text())
    assert result["digest"] == undisturbed(result["step"])


def undisturbed(steps: int) -> str:
    """The parameters after so many steps of two ranks of which nothing was lost."""
    model, optimizer = keeper.model_and_optimizer()
    for step in range(1, steps + 1):
        gradients = []
        for rank in range(2):
            optimizer.zero_grad()
            keeper.backward(model, step, rank)
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
        for parameter, first, second in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = (first + second) / 2
        optimizer.step()
    return keeper.digest(model)
