"""`dlr job stacks` asks a running job where its processes are, and names the rank that is not like others."""

from __future__ import annotations

import time

import pytest

from e2e import jobs
from e2e.cluster import Cluster
from e2e.observation import Observation
from e2e.scenarios.test_hang import NAME, hanging


@pytest.mark.named
def test_stacks_of_all_ranks_the_odd_one_first(cluster: Cluster, observation: Observation) -> None:
    namespace = observation.namespace
    job = hanging(cluster, namespace)
    del job["spec"]["elasticPolicy"]["hangTimeoutSeconds"]  # so that dlr itself finds nothing yet
    cluster.apply(job, namespace)

    def all_at_the_last_step() -> bool:
        return jobs.steps(observation, NAME) == [19, 19]

    observation.wait_for("both workers to wait at step 19", all_at_the_last_step)
    world = jobs.rendezvous(observation, NAME)
    began = time.monotonic()
    lines = cluster.dlr("job", "stacks", NAME, "-n", namespace, "--timeout", "300").splitlines()
    print(f"after {time.monotonic() - began:.2f} s:", *lines, sep="\n")
    assert lines[0].startswith("4 processes at ")
    assert lines[1].startswith("rank 2 (hanging-worker-1-1 on ") and lines[1].endswith(", step 19:")
    assert "in wait_for_the_lock: with lock:" in lines[2]
    others = [line for line in lines if line.endswith("waiting for other ranks:")]
    assert others == ["ranks 0-1,3, step 19, waiting for other ranks:"]
    assert jobs.rendezvous(observation, NAME) == world, "nobody was disturbed"
