"""The end of a job: what stays, what goes, and when."""

from __future__ import annotations

import pytest

from e2e import jobs
from e2e.api import Kind
from e2e.cluster import Cluster
from e2e.observation import Observation


def everything(cluster: Cluster, observation: Observation) -> list[str]:
    """What of the scenario's namespace is left, beside the namespace's own furniture."""
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
    cluster.apply(jobs.digits(cluster, namespace, epochs=jobs.ENDLESS_EPOCHS), namespace)
    jobs.wait_until_training(observation, 2)
    pods = jobs.current_pods(observation)

    cluster.kubectl("delete", "ej", "digits", "-n", namespace)
    observation.wait_for("workers, Pods and Leases to go", lambda: not everything(cluster, observation))
    if cluster.name == "embedded":  # elsewhere a process that is left cannot be seen without its Pod
        observation.wait_for(  # without a grace period, a kubelet hears of it when the Pod is gone already
            "the training processes to end",
            lambda: not any(cluster.training_processes(namespace, pod) for pod in pods),
        )


def test_clean_pod_policy_of_a_failed_job(cluster: Cluster, observation: Observation) -> None:
    storage = cluster.storage(observation.namespace)
    other = f"{storage.path}/worker-1"
    # Worker 0 waits for the other one, which may else have no Pod yet when the job has failed.
    script = f'[ "$WORKER_ID" = 0 ] || {{ touch {other}; exec sleep 600; }}\n'
    script += f"until [ -e {other} ]; do sleep 0.1; done; exit 7"
    manifest = jobs.shell(cluster, script, workers=2, runPolicy={"cleanPodPolicy": "Running"})
    worker = manifest["spec"]["replicaSpecs"]["worker"]
    worker["restartCount"] = 0
    worker["template"]["spec"]["volumes"] = storage.volumes
    worker["template"]["spec"]["containers"][0]["volumeMounts"] = storage.mounts
    cluster.apply(manifest, observation.namespace)

    observation.wait_for("the job to fail", lambda: jobs.phase(observation, "shell") == "Failed")
    left = {"shell-worker-0-1"}
    observation.wait_for(f"just {left} to be left", lambda: set(observation.pods()) == left)


@pytest.mark.named
def test_a_finished_job_goes_after_its_time_to_live(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.shell(cluster, "exit 0", runPolicy={"ttlSecondsAfterFinished": 2})
    cluster.apply(manifest, observation.namespace)
    observation.wait_for(
        "the job to succeed",
        lambda: any(v.get("status", {}).get("phase") == "Succeeded" for v in observation.history[Kind.JOB]),
    )
    observation.wait_for("the job to go", lambda: not everything(cluster, observation))


@pytest.mark.named
def test_a_job_fails_at_its_deadline(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.shell(cluster, "sleep 600", runPolicy={"activeDeadlineSeconds": 3})
    cluster.apply(manifest, observation.namespace)
    observation.wait_for("the job to fail", lambda: jobs.phase(observation, "shell") == "Failed")
    assert jobs.condition(observation.job("shell"), "Failed")["reason"] == "DeadlineExceeded"
    observation.wait_for("its Pod to go", lambda: not observation.pods())
