"""All replica groups pull from one set: each file is done, whatever processes, groups and controllers die."""

from __future__ import annotations

import signal

import pytest

from e2e import embedded, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation
from e2e.scenarios.test_shards import NAME, check_sum, results_in, submit, tries_in

GROUPS, WORKERS, FILES = 3, 2, 400
FILE_SECONDS = "0.5"
"""The files take much longer than what is done to those who do them."""
WITHIN_SECONDS = 300

pytestmark = [pytest.mark.needs(Capability.STORAGE), pytest.mark.needs(Capability.CONTROL_PLANE)]


def pods_of(observation: Observation, group: int) -> list[Object]:
    return jobs.current_pods(observation, f"{NAME}-group-{group}")


def pulling(observation: Observation) -> set[int]:
    """The groups whose workers have a lease to do."""
    found = set()
    for group in range(GROUPS):
        for worker in observation.workers(f"{NAME}-group-{group}"):
            for told in (worker.get("status", {}).get("agent") or {}).get("shards") or ():
                if told.get("rest"):
                    found.add(group)
    return found


def test_each_file_is_done_though_a_process_a_whole_group_and_the_controller_are_killed(
    cluster: Cluster, observation: Observation
) -> None:
    groups = {"replicaGroups": {"workers": WORKERS, "min": 1}, "lastCallSeconds": 1}
    folder = submit(
        cluster,
        observation,
        workers=GROUPS * WORKERS,
        policy=groups,
        FILES=str(FILES),
        FILE_SECONDS=FILE_SECONDS,
    )

    def wait_until_done(number: int) -> None:
        observation.wait_for(f"{number} results", lambda: len(results_in(folder)) >= number, WITHIN_SECONDS)

    observation.wait_for(
        "all groups to pull", lambda: pulling(observation) == set(range(GROUPS)), WITHIN_SECONDS
    )
    cluster.kill_process(observation.namespace, pods_of(observation, 0)[1])
    wait_until_done(FILES // 4)
    lost = {pod["metadata"]["uid"] for pod in pods_of(observation, 1)}
    for pod in pods_of(observation, 1):
        cluster.delete_pod(observation.namespace, pod["metadata"]["name"])
    wait_until_done(FILES // 2)
    cluster.control_plane(embedded.CONTROLLER).signal(signal.SIGKILL)
    jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)

    check_sum(folder, FILES)
    again = sum(tries_in(folder).values()) - FILES
    assert again <= FILES // 4, "what workers had in hand is done again, and what a lost Pod did not report"
    assert not lost & {pod["metadata"]["uid"] for pod in pods_of(observation, 1)}
    known = observation.shard_set(NAME)
    assert (known["done"], known["failed"], known["rest"], known["leases"]) == (FILES, 0, "", "")
    assert jobs.condition(observation.job(NAME), "ShardsDone")["status"] == "True"
