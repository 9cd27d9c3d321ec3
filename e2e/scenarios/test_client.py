"""Jobs from Python: a function becomes a job, is followed through a kill, and its result is read."""

from __future__ import annotations

from typing import Any

import pytest

import dlr
from e2e import jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

JSON = dict[str, Any]

pytestmark = pytest.mark.needs(Capability.STORAGE)

STEPS = 40
HELD_AT = 20


def train(folder: str, steps: int) -> dict[str, float]:
    import pathlib
    import time

    import torch.distributed as dist

    dist.init_process_group("gloo")
    mark = pathlib.Path(folder) / "step"
    first = int(mark.read_text() or 0) if mark.exists() else 0
    for step in range(first + 1, steps + 1):
        dist.barrier()
        dlr.report(step)
        if dist.get_rank() == 0:
            mark.write_text(str(step))
        if step % 10 == 0:
            print(f"at {step}", flush=True)
        while step == 20 and first == 0:
            time.sleep(0.05)  # until it is killed
    return {"first": first, "size": dist.get_world_size()}


def kill_rank_1(cluster: Cluster, observation: Observation, name: str) -> None:
    cluster.kill_process(observation.namespace, jobs.current_pods(observation, name)[1])


@pytest.mark.named
def test_a_function_is_followed_through_a_kill_to_its_result(
    cluster: Cluster, observation: Observation
) -> None:
    client = dlr.Client(observation.namespace, kubeconfig=str(cluster.kubeconfig))
    folder = cluster.storage(observation.namespace).path
    job = client.train(
        train,
        {"folder": folder, "steps": STEPS},
        workers=2,
        min_workers=1,
        image=cluster.image,
        name="shipped",
        env={"OMP_NUM_THREADS": "1"},
    )
    lines = []
    for line in job.logs(follow=True):
        lines.append(line)
        if line == "[shipped-worker-1] at 20":
            kill_rank_1(cluster, observation, "shipped")
    assert "[shipped-worker-0] at 40" in lines
    result = job.result(300)
    assert result["size"] == 2
    assert result["first"] >= HELD_AT - 1, "it went on from where it was"
    assert job.status().restarts == {"Killed": 1}
    job.delete()
    assert client.jobs() == []
