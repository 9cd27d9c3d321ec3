"""Six staged faults: the first reason of `dlr job diagnose`, and of the page, names the cause of each."""

from __future__ import annotations

import json

import pytest

from dlr.dashboard.reading import JobView
from dlr.kube.api import Api
from dlr.kube.connection import connect
from e2e import checks, elasticity, jobs
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.faults import NodeProbes, Slowed
from e2e.links import NodeNetworks
from e2e.observation import Observation
from e2e.scenarios.test_node_check_links import TIMEOUT_SECONDS, api_server, in_own_network

NODES = 4
THROTTLED_SHARE = 0.1

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


def test_a_loss_that_is_no_number_is_named(cluster: Cluster, observation: Observation) -> None:
    mortals = staged(cluster, observation)
    mortals.tell(1, "nan")
    assert_named(
        cluster, observation, mortals.name, "NonFiniteLoss", "loss is no number", "rank 1", "at step"
    )


def test_a_job_that_waits_for_room_is_named(cluster: Cluster, observation: Observation) -> None:
    manifest = jobs.shell(cluster, "sleep 1", name="large")
    container = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1000"}}
    cluster.apply(manifest, observation.namespace)
    assert_named(cluster, observation, "large", "Unschedulable", "waits for room", "Insufficient cpu")
    page = cluster.dlr("job", "diagnose", "large", "-n", observation.namespace)
    assert "a Pod asks for 1000 of cpu, and the largest node has" in " ".join(page.split())


def on_all_nodes(cluster: Cluster, observation: Observation) -> None:
    """A job with a worker on each node, which the check has tested."""
    cluster.apply(
        jobs.one_a_node(elasticity.idle(cluster, workers=NODES, minimum=NODES, maximum=NODES)),
        observation.namespace,
    )
    elasticity.wait_for_world(observation, list(range(NODES)), "idle")


@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_a_slow_node_is_named(cluster: Cluster, observation: Observation) -> None:
    nodes = checks.node_names(cluster)
    with Slowed(NodeProbes(observation.namespace, nodes[2]), THROTTLED_SHARE):
        spec = {"nodes": nodes, "stragglerRatio": 3, "cordon": False}
        cluster.apply(checks.node_check(spec), observation.namespace)
        checks.wait_until_finished(observation)
    on_all_nodes(cluster, observation)
    assert_named(cluster, observation, "idle", "Stragglers", f"{nodes[2]} slow")


@pytest.mark.needs(Capability.NETWORK_NAMESPACES)
def test_a_bad_link_is_named(cluster: Cluster, observation: Observation) -> None:
    nodes = checks.node_names(cluster)
    with NodeNetworks(nodes, api_server(cluster)) as networks:
        networks.cut(nodes[0], nodes[1])
        spec = {
            "nodes": nodes,
            "screeningRounds": 3,
            "timeoutSeconds": TIMEOUT_SECONDS,
            "template": in_own_network(networks),
        }
        cluster.apply(checks.node_check(spec), observation.namespace)
        checks.wait_until_finished(observation)
    on_all_nodes(cluster, observation)
    assert_named(cluster, observation, "idle", "FaultyLinks", f"{nodes[0]} and {nodes[1]}")
