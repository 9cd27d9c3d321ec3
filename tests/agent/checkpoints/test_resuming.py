"""Real agents whose processes keep checkpoints in their memory, and lose one another."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import Agent, Agents, kill, training_processes
from tests.agent.fake_cluster import FakeCluster
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

SCRIPT = str(Path(__file__).with_name("keeping.py"))
MEMORY = {"DLR_MEMORY_CHECKPOINT_BYTES": str(4 << 20)}
WITH_REPLICAS = {**MEMORY, "DLR_MEMORY_CHECKPOINT_REPLICAS": "1"}


class Logs:
    """What the processes of `keeping.py` wrote."""

    def __init__(self, cluster: FakeCluster, directory: Path) -> None:
        self.directory = directory
        self._cluster = cluster

    def told(self, round_: int, rank: int) -> dict[str, Any]:
        """What the agent told a process."""
        content: dict[str, Any] = json.loads(self._lines(round_, rank)[0])
        return content

    def resumed(self, round_: int, rank: int) -> int:
        return int(self._lines(round_, rank)[1].removeprefix("resumed "))

    def last_step(self, round_: int, rank: int) -> int:
        steps = [line for line in self._lines(round_, rank) if line.startswith("step ")]
        return int(steps[-1].split()[1]) if steps else -1

    def wait_steps(self, round_: int, ranks: range, step: int) -> None:
        wait_for(
            lambda: all(self.last_step(round_, rank) >= step for rank in ranks),
            f"step {step} in round {round_}",
        )

    def _lines(self, round_: int, rank: int) -> list[str]:
        try:
            return (self.directory / f"{round_}.{rank}").read_text().splitlines() or ["{}"]
        except FileNotFoundError:
            return ["{}"]


def start(agents: Agents, cluster: FakeCluster, count: int, **environ: str) -> list[Agent]:
    """Agents of the first round, whose processes make steps."""
    started = [agents.start(index, SCRIPT, warm=True, **environ) for index in range(count)]
    cluster.wait_state(dict.fromkeys(range(count), "Ready"), 0)
    cluster.form(list(range(count)))
    return started


def test_nothing_is_left_when_the_agent_is_killed(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    logs = Logs(cluster, tmp_path / "work")
    (agent,) = start(agents, cluster, 1, **MEMORY)
    logs.wait_steps(1, range(1), 1)
    (process,) = training_processes(agent.pid)
    slots = logs.told(1, 0)["slots"]
    assert all("memfd:dlr-slot" in str(Path(path).readlink()) for path in slots)
    kill(agent.pid, signal.SIGKILL)
    agent.wait()
    kill(process, signal.SIGKILL)
    assert not any(Path(path).exists() for path in slots)


def replicated(cluster: FakeCluster, index: int) -> int:
    """The newest step of an agent's processes that its peer has, as it told last."""
    return int((cluster.agent(index).get("memory") or {}).get("replicatedStep") or 0)
