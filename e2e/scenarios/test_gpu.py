"""Two Pods train over NCCL on one GPU: killed, hung, out of memory, in CUDA's errors. Skipped without a GPU.

NCCL refuses to have one GPU twice on a host, so each Pod says that it is a host (NCCL_HOSTID).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

pytestmark = [
    pytest.mark.needs(Capability.STORAGE),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]
NAME = "gpu"
SCRIPT = Path(__file__).parent.parent / "fixtures" / "on_gpu.py"
HANG_TIMEOUT_SECONDS = 10


class Training:
    """A job of two workers, and what its processes wrote."""

    def __init__(self, cluster: Cluster, observation: Observation, **variables: str) -> None:
        self.cluster, self.observation = cluster, observation
        self.folder = Path(cluster.storage(observation.namespace).path) / NAME
        self.folder.mkdir()
        env = {"FOLDER": str(self.folder), "CUDA_VISIBLE_DEVICES": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        host = {"name": "NCCL_HOSTID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        manifest = jobs.scripted(
            cluster,
            NAME,
            2,
            ["dlr", "run", str(SCRIPT)],
            env=env | variables,
            grace_seconds=5,
            worker={"memoryCheckpoint": {"size": "64Mi", "replicas": 1}, "restartCount": 10},
            elasticPolicy={**jobs.QUICK_REPORTS, "hangTimeoutSeconds": HANG_TIMEOUT_SECONDS},
            runPolicy=jobs.KEEP_PODS,
        )
        (container,) = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
        container["env"].append(host)
        cluster.apply(manifest, observation.namespace)

    def entries(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"rank-{rank}.jsonl"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def starts(self, rank: int) -> list[int]:
        return [entry["resumed"] for entry in self.entries(rank) if "resumed" in entry]

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        return self.observation.wait_for(what, lambda: condition() or None)

    def wait_for_start(self, number: int) -> int:
        """Wait until processes were started so often and have made ten steps; what they went on from."""
        self.wait(f"start {number}", lambda: all(len(self.starts(rank)) == number for rank in range(2)))
        first: int = self.starts(0)[-1]
        second = self.starts(1)[-1]
        assert first == second
        self.wait("ten more steps", lambda: self.entries(0)[-1].get("step", 0) >= first + 10)
        return first

    def order(self, order: str, rank: int) -> int:
        """Give an order; the last step before it was seen to."""
        (file := self.folder / f"{order}-{rank}").touch()
        self.wait(f"{file.name} to be seen", lambda: not file.exists())
        return max(int(entry["step"]) for entry in self.entries(rank) if "step" in entry)

    def failure(self, number: int) -> Object:
        """Return the job's failure before that start."""

        def reported() -> Object:
            found: Object = self.observation.job(NAME)["status"].get("lastFailure") or {}
            return found if found.get("round") == number - 1 else {}

        failure: Object = self.wait(f"failure {number - 1}", reported)
        return failure

    def stacks(self) -> dict[int, str]:
        """Return the stack of each rank when training hung last."""
        reports = [
            worker["status"]["agent"].get("failure") or {} for worker in self.observation.workers(NAME)
        ]
        return {stack["rank"]: stack["frames"] for report in reports for stack in report.get("stacks", [])}

    def pauses(self) -> list[float]:
        """Seconds from the last step of each start to the first of the next."""
        times, pauses = self.entries(0), []
        for number, entry in enumerate(times[:-1]):
            if number and "resumed" in entry:
                pauses.append(round(times[number + 1]["at"] - times[number - 1]["at"], 2))
        return pauses

    def end(self) -> dict[str, Any]:
        (self.folder / "end").touch()
        jobs.wait_until_succeeded(self.observation, NAME)
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found


def test_processes_and_pods_on_a_gpu_are_lost_and_one_step_at_most_is_made_again(
    cluster: Cluster, observation: Observation
) -> None:
    training = Training(cluster, observation)
    training.wait_for_start(1)
    for number in (2, 3, 4):
        reached = training.entries(0)[-1]["step"]
        cluster.kill_process(observation.namespace, jobs.current_pods(observation, NAME)[number % 2])
        assert training.wait_for_start(number) >= reached - 1
    reached = training.entries(0)[-1]["step"]
    cluster.delete_pod(observation.namespace, f"{NAME}-worker-0-1")
    assert training.wait_for_start(5) >= reached - 1
    result = training.end()
    print("pauses", training.pauses(), result)
    print(observation.job(NAME)["status"].get("history"))


@pytest.mark.parametrize(
    ("order", "exit_class", "text"),
    [
        ("oom", "UserError", "CUDA out of memory"),  # more memory for the host would not help
        ("assert", "UserError", "device-side assert"),
    ],
)
def test_what_fails_on_a_gpu_is_told_as_what_it_is(
    order: str, exit_class: str, text: str, cluster: Cluster, observation: Observation
) -> None:
    training = Training(cluster, observation)
    training.wait_for_start(1)
    training.order(order, 1)
    failure = training.failure(2)
    print(json.dumps(failure, indent=1))
    assert (failure["exitClass"], failure["rank"]) == (exit_class, 1)
    assert text in failure["message"]
    assert training.wait_for_start(2) > 0
    training.end()


def test_who_keeps_the_others_waiting_on_a_gpu_is_named(cluster: Cluster, observation: Observation) -> None:
    """The other waits in `while not ends:`, which only NCCL's record tells from any other line."""
    training = Training(cluster, observation)
    training.wait_for_start(1)
    training.order("hang", 0)
    failure = training.failure(2)
    print(json.dumps(failure, indent=1), training.stacks())
    assert (failure["exitClass"], failure["rank"]) == ("Hang", 0)
    assert "in wait_for_ever: time.sleep(1)" in failure["message"].splitlines()[0]
    assert training.stacks()[1].startswith("NCCL: all_reduce ")
    assert training.wait_for_start(2) > 0
    training.end()


def test_ranks_that_wait_for_different_collectives_are_shown_with_them(
    cluster: Cluster, observation: Observation
) -> None:
    training = Training(cluster, observation)
    training.wait_for_start(1)
    training.order("differ", 1)
    failure = training.failure(2)
    first, second = training.stacks()[0], training.stacks()[1]
    print(json.dumps(failure, indent=1), first, second)
    assert failure["exitClass"] == "Hang" and "waits for others in NCCL's " in failure["message"]
    assert first.startswith("NCCL: ") and second.startswith("NCCL: ")
    assert first.splitlines()[0] != second.splitlines()[0]
    assert training.wait_for_start(2) > 0
    training.end()
