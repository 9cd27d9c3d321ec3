"""Several agents with real process groups (gloo), and stock torchrun on the same rendezvous."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.agent.conftest import Agents, training_processes
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

TRAIN = """
import os, time, dlr, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=600))
for step in range(20 if os.path.exists(os.environ["OUT"] + "/last") else 100000):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    dlr.report(step)
    if step == 0:
        print(f"first step: rank={dist.get_rank()} of={dist.get_world_size()}", flush=True)
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.fixture
def entry_point(agents: Agents, tmp_path: Path) -> None:
    """As an installed dlr would have it: what torch reads is the entry point's metadata."""
    metadata = tmp_path / "work/dlr_entry-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dlr_entry\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torchrun.handlers]\ndlr = dlr.torchrun:get_handler\n")


@pytest.mark.usefixtures("entry_point")
def test_stock_torchrun_trains_through_a_restart(
    cluster: FakeCluster, agents: Agents, tmp_path: Path
) -> None:
    script = agents.script(TRAIN)
    running = [
        agents.start(
            index,
            "--max-restarts=3",
            script,
            module="torch.distributed.run",
            PET_RDZV_BACKEND="dlr",
            PET_RDZV_ID="job",
            PET_NNODES="1:2",
        )
        for index in range(2)
    ]
    cluster.wait_state({0: "Ready", 1: "Ready"}, 0)
    cluster.form([0, 1])
    for index in range(2):
        agents.wait_log(index, f"first step: rank={index} of=2")
    (process,) = training_processes(running[1].pid)
    os.kill(process, signal.SIGKILL)
    cluster.wait(lambda: cluster.agent(1)["state"] == "Ready", "worker 1 to leave")
    assert cluster.agent(1)["observedRound"] == 1
    (tmp_path / "work/last").touch()
    cluster.form([0, 1])
    for index in range(2):
        agents.wait_log(index, f"first step: rank={index} of=2", times=2)
    for agent in running:
        assert agent.wait(300) == 0
    assert cluster.agent(0)["state"] == "Succeeded"
