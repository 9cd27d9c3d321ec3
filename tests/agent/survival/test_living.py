"""Real agents whose processes live on; the processes are a stub that speaks the protocol."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest

from tests.agent.conftest import Agent, Agents, runs
from tests.agent.fake_cluster import FakeCluster
from tests.agent.patience import wait_for

pytestmark = pytest.mark.real

ANY_TORCH = {"agent.torch_compat.versions.REFORMING": [2, 0], "agent.survival.kept.LEAVE_SECONDS": 60.0}
"""The stub forms no groups, so it needs no torch that can form them again."""


@dataclass(frozen=True)
class Part:
    """One process's part in a round."""

    round: int
    local_rank: int
    pid: int
    step: int
    words: tuple[str, ...] = ()


def start(agents: Agents, index: int = 0, processes: int = 2, **environ: str) -> Agent:
    script = agents.script("from tests.agent.survival.living import main\nmain()\n")
    return agents.start(
        *(index, f"--nproc-per-node={processes}", script),
        warm=True,
        constants=ANY_TORCH,
        DLR_MEMORY_CHECKPOINT_BYTES=str(8 << 20),
        **environ,
    )


def parts(agents: Agents, round_: int) -> dict[int, Part]:
    try:
        lines = (agents.directory / "rounds").read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = [(*map(int, line.split()[:4]), tuple(line.split()[4:])) for line in lines]
    return {part.local_rank: part for part in (Part(*each) for each in found) if part.round == round_}


def wait_parts(agents: Agents, round_: int, count: int = 2) -> dict[int, Part]:
    wait_for(lambda: len(parts(agents, round_)) == count, lambda: f"{round_}: {agents.log(0)}")
    return parts(agents, round_)


def test_a_process_lives_through_the_death_of_the_other(cluster: FakeCluster, agents: Agents) -> None:
    agent = start(agents)
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    first = wait_parts(agents, 1)
    cluster.wait_step(0, 3)
    os.kill(first[1].pid, signal.SIGKILL)
    cluster.wait_state({0: "Failed"}, 1)
    assert runs(first[0].pid)
    cluster.form([0])
    second = wait_parts(agents, 2)
    assert second[0].pid == first[0].pid and second[0].words == ("lives",)
    assert second[1].pid != first[1].pid and second[1].words == ("newcomer",)
    assert second[0].step == second[1].step > 0
    cluster.wait(lambda: cluster.agent(0).get("livedOn") == {"round": 2, "processes": 1}, "the report")
    cluster.wait_step(0, second[0].step + 3)
    agent.terminate()
    assert agent.wait(300) == 143
    assert not any(runs(part.pid) for part in second.values())


def test_a_spare_takes_the_place_of_a_dead_process(cluster: FakeCluster, agents: Agents) -> None:
    agent = start(agents, DLR_SPARE_PROCESSES="1")
    cluster.wait_state({0: "Ready"}, 0)
    cluster.form([0])
    first = wait_parts(agents, 1)
    wait_for(lambda: len(list(agents.directory.glob("spare.*"))) == 2, lambda: agents.log(0))
    spares = {
        int(rank): int(pid)
        for _, rank, pid in (path.name.split(".") for path in agents.directory.glob("spare.*"))
    }
    os.kill(first[1].pid, signal.SIGKILL)
    cluster.wait_state({0: "Failed"}, 1)
    cluster.form([0])
    second = wait_parts(agents, 2)
    assert (second[0].pid, second[1].pid) == (first[0].pid, spares[1])
    assert second[1].words == ("spare",)
    wait_for(lambda: len(list(agents.directory.glob("spare.1.*"))) == 2, lambda: agents.log(0))
    agent.terminate()
    assert agent.wait(300) == 143
    made = [int(path.name.rpartition(".")[2]) for path in agents.directory.glob("spare.*")]
    assert not any(runs(pid) for pid in made)
