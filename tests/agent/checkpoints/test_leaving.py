"""Real agents and `Checkpointer`, in the example's script: a planned change makes no step twice, and none wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from dlr.checkpoint.files import files_at
from dlr.checkpoint.storage import read_manifest, verify
from tests.agent.conftest import Agent, Agents, training_processes
from tests.agent.fake_cluster import FakeCluster
from tests.agent.fork_server import ROOT

pytestmark = pytest.mark.real

SCRIPT = str(ROOT / "examples" / "memory" / "train.py")
MEMORY = {"DLR_MEMORY_CHECKPOINT_BYTES": str(4 << 20), "DLR_MEMORY_CHECKPOINT_REPLICAS": "1"}


class Training:
    """Agents that train by the example, and the steps that were made."""

    def __init__(self, cluster: FakeCluster, agents: Agents, count: int, **environ: str) -> None:
        self.cluster, self.agents = cluster, agents
        self.environ = {"STEPS": "100000", "STEP_SECONDS": "0.05", **environ}
        self.running = {index: self.start(index) for index in range(count)}
        cluster.wait_state(dict.fromkeys(range(count), "Ready"), 0)

    def start(self, index: int, incarnation: int = 1) -> Agent:
        return self.agents.start(index, SCRIPT, incarnation=incarnation, warm=True, **self.environ)

    def steps(self) -> list[dict[str, Any]]:
        file = self.agents.directory / "steps.jsonl"
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def train(self, workers: int, steps: int = 5) -> None:
        """Wait until a world of so many has made some steps more."""
        before, deadline = len(self.steps()), time.monotonic() + 300
        while [step["world"] for step in self.steps()[before:]].count(workers) < steps:
            assert time.monotonic() < deadline, "\n".join(self.agents.log(index) for index in self.running)
            time.sleep(0.05)

    def form(self, members: list[int]) -> None:
        self.cluster.form(members)
        self.train(len(members))

    def assert_undisturbed(self) -> None:
        steps = self.steps()
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1)), "a step was made again"
        folder = self.agents.directory / "undisturbed"
        folder.mkdir()
        variables = {
            "STEPS": str(len(steps)),
            "STEP_SECONDS": "0",
            "OUT": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
        subprocess.run([sys.executable, SCRIPT], env=environ, check=True)
        alone = [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert [step["loss"] for step in steps] == pytest.approx(alone, rel=1e-3)


def test_two_workers_three_and_two_again(cluster: FakeCluster, agents: Agents) -> None:
    training = Training(cluster, agents, 3, **MEMORY)
    training.form([0, 1])
    training.form([0, 1, 2])
    assert "kept in memory" in agents.log(0)
    cluster.form([0, 1])
    os.kill(training.running[2].pid, signal.SIGTERM)  # its Pod is deleted as soon as a world does without it
    training.train(2)
    assert training.running.pop(2).wait(300) == 143
    if "kept in storage" not in agents.log(2):  # the signal came before the world
        assert "has been copied to the memory of another Pod" in agents.log(2)
        assert "kept in storage" not in agents.log(0)
    training.assert_undisturbed()


def test_what_a_failure_leaves_in_memory_is_persisted(cluster: FakeCluster, agents: Agents) -> None:
    training = Training(
        cluster, agents, 2, **MEMORY, EVERY="1", STEP_SECONDS="0.3", DLR_MEMORY_CHECKPOINT_PERSIST="1"
    )
    training.form([0, 1])
    folder = agents.directory / "checkpoints"
    assert not list(folder.glob("step-*"))
    (process,) = training_processes(training.running[1].pid)
    os.kill(process, signal.SIGKILL)
    cluster.wait_state({1: "Failed"}, 1)
    cluster.form([0, 1])
    cluster.wait(lambda: list(folder.glob("step-*/.metadata")), "a whole checkpoint in storage")
    (persisted,) = folder.glob("step-*")
    cluster.wait(lambda: cluster.agent(0)["memory"].get("resumed"), "a report of it")
    resumed = cluster.agent(0)["memory"]["resumed"]
    assert resumed == {"round": 2, "step": int(persisted.name.removeprefix("step-")), "tier": "memory"}
    files = files_at(folder)
    manifest = read_manifest(files, resumed["step"])
    verify(files, manifest, manifest.files)


def test_a_deleted_pod_and_a_suspension(cluster: FakeCluster, agents: Agents) -> None:
    training = Training(cluster, agents, 2, **MEMORY)
    training.form([0, 1])
    os.kill(training.running[1].pid, signal.SIGTERM)
    assert training.running[1].wait(300) == 143
    cluster.wait_state({0: "Ready"}, 1)
    cluster.replace_worker("job-worker-1", 2)
    training.running[1] = training.start(1, incarnation=2)
    cluster.wait(lambda: cluster.agent(1).get("incarnation") == 2, "the replacement")
    training.form([0, 1])

    cluster.publish(phase="Suspended")
    assert [agent.wait(300) for agent in training.running.values()] == [143, 143]
    for index, incarnation in ((0, 2), (1, 3)):
        cluster.replace_worker(f"job-worker-{index}", incarnation)
        training.running[index] = training.start(index, incarnation)
    cluster.publish(phase="Running")
    for index, incarnation in ((0, 2), (1, 3)):
        cluster.wait(lambda i=index, n=incarnation: cluster.agent(i).get("incarnation") == n, "the next Pod")
    training.form([0, 1])
    training.assert_undisturbed()
