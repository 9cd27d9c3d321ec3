"""The end of a job: what stays, what goes, and when."""

from __future__ import annotations

import pytest

from e2e import elasticity, jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation


def everything(cluster: Cluster, observation: Observation) -> list[str]:
    """Return the objects left in the scenario's namespace, except those that every namespace has."""
    api = cluster.api()
    kinds = (Kind.JOB, Kind.WORKER, Kind.POD, Kind.LEASE)
    found = [
        f"{kind.name} {item['metadata']['name']}"
        for kind in kinds
        for item in api.list(kind, observation.namespace)["items"]
    ]
    api.close()
    return found


@pytest.mark.named
def test_deleting_a_job_removes_everything_it_made(cluster: Cluster, observation: Observation) -> None:
    namespace = observation.namespace
    cluster.apply(elasticity.idle(cluster, workers=2, minimum=2, maximum=2), namespace)
    world = elasticity.wait_for_world(observation, [0, 1], "idle")
    elasticity.wait_until_all_run(observation, world, "idle")
    pods = jobs.current_pods(observation, "idle")

    cluster.kubectl("delete", "ej", "idle", "-n", namespace)
    observation.wait_for("workers, Pods and Leases to go", lambda: not everything(cluster, observation))
    if cluster.name == "embedded":  # elsewhere a process that is left cannot be seen without its Pod
        observation.wait_for(
            "the training processes to end",
            lambda: not any(cluster.training_processes(namespace, pod) for pod in pods),
        )


@pytest.mark.named
def test_a_job_fails_at_its_deadline_and_goes_after_its_time_to_live(
    cluster: Cluster, observation: Observation
) -> None:
    times = {"activeDeadlineSeconds": 3, "ttlSecondsAfterFinished": 2}
    cluster.apply(jobs.shell(cluster, "sleep 600", runPolicy=times), observation.namespace)

    def ended() -> Object | None:
        seen = [job for job in observation.history[Kind.JOB] if jobs.condition(job, "Failed")]
        return seen[-1] if seen else None

    job = observation.wait_for("the job to fail", ended)
    assert jobs.condition(job, "Failed")["reason"] == "DeadlineExceeded"
    observation.wait_for("the job to go", lambda: not everything(cluster, observation))
