"""Four staged faults: the first reason of `dlr job diagnose`, and of the page, names the cause of each."""

from __future__ import annotations

import json

import pytest

from dlr.dashboard.reading import JobView
from dlr.kube.api import Api
from dlr.kube.connection import connect
from e2e import jobs
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.observation import Observation

NODES = 4

pytestmark = [pytest.mark.needs(Capability.STORAGE)]


def assert_named(cluster: Cluster, observation: Observation, job: str, cause: str, *said: str) -> None:
    """Waits until the first reason is about that, and holds the page's beside it."""

    def diagnosed() -> bool:
        found = json.loads(cluster.dlr("job", "diagnose", job, "-n", observation.namespace, "-o", "json"))
        text = found["findings"][0]["text"] if found["findings"] else ""
        if found["cause"] != cause or not all(words in text for words in said):
            return False
        print(f"{cause}: {text}")
        return True

    observation.wait_for(f"the diagnosis to name {cause} with {said}", diagnosed)

    api = Api(connect(str(cluster.kubeconfig), None, observation.namespace))
    page = JobView(api, job).read()
    assert page["cause"] == cause and all(words in page["findings"][0]["text"] for words in said)


def staged(cluster: Cluster, observation: Observation) -> Mortals:
    mortals = Mortals(cluster, observation)
    mortals.submit(2, elasticPolicy=jobs.QUICK_REPORTS | {"hangTimeoutSeconds": 30})
    mortals.wait_until_training()
    return mortals


def test_a_hang_is_named(cluster: Cluster, observation: Observation) -> None:
    mortals = staged(cluster, observation)
    mortals.tell(1, "hang")
    assert_named(cluster, observation, mortals.name, "Hang", "ank 1", "hung", "lock.acquire()")


@pytest.mark.needs(Capability.MEMORY_LIMITS)
def test_a_loop_of_pods_without_memory_is_named(cluster: Cluster, observation: Observation) -> None:
    mortals = staged(cluster, observation)
    life = mortals.wait_until_training()
    for _ in range(2):
        mortals.tell(1, "eat")
        life = mortals.wait_until_training(beyond=life)
    assert_named(cluster, observation, mortals.name, "OOM", "ank 1", "ran out of memory")


def test_a_loss_that_is_nan_is_named(cluster: Cluster, observation: Observation) -> None:
    mortals = staged(cluster, observation)
    mortals.tell(1, "nan")
    assert_named(
        cluster, observation, mortals.name, "NonFiniteLoss", "NaN or infinite loss", "rank 1", "at step"
    )


def test_a_job_that_waits_for_room_is_named(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.shell(cluster, "sleep 1", name="large")
    container = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1000"}}
    cluster.apply(manifest, observation.namespace)
    assert_named(cluster, observation, "large", "Unschedulable", "waits for room", "Insufficient cpu")
    page = cluster.dlr("job", "diagnose", "large", "-n", observation.namespace)
    assert "a Pod asks for 1000 of cpu, and the largest node has" in " ".join(page.split())
