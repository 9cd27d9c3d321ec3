"""Links that are cut between nodes which are well: they are named, and nobody is cordoned for it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import yaml

from e2e import checks, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.links import Address, NodeNetworks
from e2e.observation import Observation

NODES = 6
TIMEOUT_SECONDS = 100
"""Nodes of a pair that does not meet wait for each other for three tenths of it."""


def api_server(cluster: Cluster) -> Address:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    assert server.hostname and server.port
    return server.hostname, server.port


def in_own_network(networks: NodeNetworks) -> Object:
    """The Pod template of a check whose agents live in the networks of their nodes."""
    command = networks.command("dlr", "check-worker")
    return {"spec": {"containers": [{"name": "check", "image": "any", "command": command}]}}


@pytest.mark.needs(Capability.NETWORK_NAMESPACES)
def test_a_cut_link_is_named_and_both_of_its_nodes_are_well(
    cluster: Cluster, observation: Observation
) -> None:
    nodes = ["node-0", "node-1", "node-2", "node-3"]
    with NodeNetworks(nodes, api_server(cluster)) as networks:
        networks.cut("node-0", "node-1")
        spec = {
            "nodes": nodes,
            "screeningRounds": 3,  # so that each meets each
            "timeoutSeconds": TIMEOUT_SECONDS,
            "template": in_own_network(networks),
        }
        cluster.apply(checks.node_check(spec), observation.namespace)
        check = checks.wait_until_finished(observation)
    print(checks.duration(check))
    status = check["status"]
    screening = {**checks.groups(check, 1), **checks.groups(check, 2), **checks.groups(check, 3)}
    assert screening == {pair: set(pair) != {"node-0", "node-1"} for pair in screening}
    assert [(link["a"], link["b"], link["symptom"]) for link in status.get("faultyLinks", [])] == [
        ("node-0", "node-1", "failed")
    ], observation.describe()
    assert set(checks.verdicts(check).values()) == {"Healthy"}, observation.describe()
    healthy = jobs.condition(check, "Healthy")
    assert (healthy["status"], healthy["reason"]) == ("False", "FaultyLinks")
    checks.assert_in_service(cluster, nodes)
