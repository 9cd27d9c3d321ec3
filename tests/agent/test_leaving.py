"""Agents whose training processes leave by vote: real ones, with gloo."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.agent.conftest import Agent, Agents, runs, training_processes, wait_for
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

TRAIN = """
import json, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from dlr.checkpoint import leaving

out = Path(os.environ["OUT"])
dist.init_process_group("gloo", timeout=timedelta(seconds=600))
rank = dist.get_rank()
EXIT = int(os.environ.get("EXIT", "143"))
signal.signal(signal.SIGTERM, lambda *_: (print(f"rank {rank} got SIGTERM", flush=True), os._exit(EXIT)))
if os.environ.get("MUTE") != str(rank):
    leaving.take_part()
state = out / "state.json"
first = json.loads(state.read_text())["step"] + 1 if state.exists() else 0
print(f"rank {rank} of {dist.get_world_size()} begins with step {first}", flush=True)
for step in range(first, 100_000):
    total = torch.ones(1)
    dist.all_reduce(total)
    time.sleep(0.01 + 0.01 * rank)
    with (out / f"steps.{rank}").open("a") as file:
        file.write(f"{step}\\n")
    while (out / "slow").exists():
        (out / f"slow.{rank}").touch()
        time.sleep(0.05)
    tier = leaving.boundary(step)
    if tier is not None:
        print(f"rank {rank} leaves after step {step} for {tier}", flush=True)
        if rank == 0:
            state.write_text(json.dumps({"step": step}))
        time.sleep(float(os.environ.get("SAVE_SECONDS", "0")) * rank)
        while (out / "saving").exists():
            time.sleep(0.05)
        if (out / "fail").exists():
            while (out / "fail").read_text() != str(rank):  # the other one waits until it is ended
                time.sleep(0.05)
            raise RuntimeError("the save failed")
        leaving.leave()
"""


def start(cluster: FakeCluster, agents: Agents, **environ: str) -> list[Agent]:
    """Two agents with one process each, that train."""
    script = agents.script(TRAIN)
    running = [agents.start(index, script, warm=True, **environ) for index in range(2)]
    cluster.wait_state({0: "Ready", 1: "Ready"}, 0)
    cluster.form([0, 1])
    for index in range(2):
        agents.wait_log(index, f"rank {index} of 2 begins with step 0")
    wait_steps(agents, 10)
    return running


def wait_steps(agents: Agents, count: int) -> None:
    deadline = time.monotonic() + 300
    while min((len(steps(agents, rank)) for rank in range(2)), default=0) < count:
        assert time.monotonic() < deadline, agents.log(0) + agents.log(1)
        time.sleep(0.02)


def steps(agents: Agents, rank: int) -> list[int]:
    file = agents.directory / f"steps.{rank}"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def left_after(agents: Agents, tier: str) -> int:
    """The step after which both left, as they say, and as they have noted; no step was made twice."""
    agents.wait_log(0, "rank 0 leaves after")
    step = max(steps(agents, 0))
    for rank in range(2):
        agents.wait_log(rank, f"rank {rank} leaves after step {step} for {tier}")
        assert steps(agents, rank) == list(range(step + 1))
        assert "got SIGTERM" not in agents.log(rank)
    return step


def test_a_planned_world_begins_where_all_have_left(cluster: FakeCluster, agents: Agents) -> None:
    start(cluster, agents)
    formed_at = time.monotonic()
    cluster.form([0, 1])
    agents.wait_log(0, "rank 0 leaves after")
    cluster.wait_state({0: "Running", 1: "Running"}, 2)
    print(f"all run again after {time.monotonic() - formed_at:.3f} s")
    first = int(agents.log(0).rpartition("leaves after step ")[2].split()[0]) + 1
    for index in range(2):
        agents.wait_log(index, f"rank {index} of 2 begins with step {first}")
        agents.wait_log(index, f"rank {index} leaves after step {first - 1} for memory")
        assert "got SIGTERM" not in agents.log(index)
    wait_steps(agents, first + 5)
    for rank in range(2):
        made = steps(agents, rank)
        assert made == list(range(len(made))), "a step was made twice"


@pytest.mark.parametrize(("asked", "signum"), [(0, signal.SIGTERM), (1, signal.SIGUSR1)])
def test_a_signal_to_one_agent_has_all_leave_after_the_same_step(
    cluster: FakeCluster, agents: Agents, asked: int, signum: signal.Signals
) -> None:
    running = start(cluster, agents, SAVE_SECONDS="0.5")
    os.kill(running[asked].pid, signum)
    step = left_after(agents, "storage")
    assert running[asked].wait(300) == 143
    other = 1 - asked
    cluster.wait_state({other: "Ready"}, 1)
    for index, state in ((asked, "Stopped"), (other, "Ready")):
        agent = cluster.agent(index)
        left = agent["state"], agent.get("departure")
        assert left == (state, {"round": 1, "step": step}), agents.log(index)
        assert not agent.get("failure")
    assert running[other].poll() is None


def test_a_second_signal_ends_nobody_who_saves(cluster: FakeCluster, agents: Agents) -> None:
    running = start(cluster, agents)
    (agents.directory / "saving").touch()
    os.kill(running[1].pid, signal.SIGUSR1)
    agents.wait_log(1, "rank 1 leaves after")
    os.kill(running[1].pid, signal.SIGTERM)
    (agents.directory / "saving").unlink()
    step = left_after(agents, "storage")
    assert running[1].wait(300) == 143
    assert cluster.agent(1)["departure"] == {"round": 1, "step": step}


def test_a_suspended_job_leaves_for_storage(cluster: FakeCluster, agents: Agents) -> None:
    running = start(cluster, agents)
    cluster.publish(phase="Suspended")
    left_after(agents, "storage")
    assert [agent.wait(300) for agent in running] == [143, 143]


def test_where_one_rank_takes_no_part_all_are_stopped_as_ever(cluster: FakeCluster, agents: Agents) -> None:
    running = start(cluster, agents, MUTE="1")
    cluster.publish(phase="Suspended")
    assert [agent.wait(300) for agent in running] == [143, 143]  # half of the grace would be 600 s
    assert "leaves after" not in agents.log(0) + agents.log(1)
    assert "got SIGTERM" in agents.log(0) + agents.log(1)


def test_processes_that_are_late_and_end_with_0_have_not_finished_the_training(
    cluster: FakeCluster, agents: Agents
) -> None:
    running = start(cluster, agents, EXIT="0", DLR_TERMINATION_GRACE_SECONDS="6")
    late = [process for agent in running for process in training_processes(agent.pid)]
    (agents.directory / "slow").touch()  # a step takes longer than the grace
    # The other one may have begun the next step, in which it waits for this one.
    wait_for(lambda: any(agents.directory.glob("slow.*")), "a slow step")
    cluster.form([0, 1])
    for process in late:  # which has an exit code of its own, unless it was not even quick enough for that
        wait_for(lambda process=process: not runs(process), "the end of a process")
    (agents.directory / "slow").unlink()
    cluster.wait_state({0: "Running", 1: "Running"}, 2)
    assert [agent.poll() for agent in running] == [None, None]


@pytest.mark.parametrize(("failing", "state"), [(0, "Failed"), (1, "Stopped")])
def test_a_process_that_fails_as_it_leaves_is_a_failure(
    cluster: FakeCluster, agents: Agents, failing: int, state: str
) -> None:
    running = start(cluster, agents)
    (agents.directory / "fail").write_text(str(failing))
    os.kill(running[1].pid, signal.SIGUSR1)
    cluster.wait(lambda: cluster.agent(failing)["state"] == state, "its end")
    assert "the save failed" in cluster.agent(failing)["failure"]["message"]
