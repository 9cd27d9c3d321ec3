"""Checks of a cluster's nodes: the broken one is cordoned, the slow one is not, nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import checks, jobs
from e2e.api import Kind, Object
from e2e.cluster import Capability, Cluster
from e2e.faults import Held, NodeProbes
from e2e.observation import Observation

TIMEOUT_SECONDS = 300


BROKEN_NODE = """
import os, sys
if os.environ.get("DLR_NODE_NAME") == "node-2" and ".probes.gemm" in " ".join(sys.orig_argv):
    with open({killed!r}, "a") as file:
        file.write("x")
    os.kill(os.getpid(), 9)
"""
"""A sitecustomize of the check's Pods: a probe dies on one node, whenever that comes to run."""


@pytest.mark.needs(Capability.STORAGE)
@pytest.mark.named
def test_a_broken_node_is_found_and_cordoned(cluster: Cluster, observation: Observation) -> None:
    nodes = ["node-0", "node-1", "node-2"]
    folder = Path(cluster.storage(observation.namespace).path)
    killed = folder / "killed"
    (folder / "sitecustomize.py").write_text(BROKEN_NODE.format(killed=str(killed)))
    container = {
        "name": "check",
        "image": cluster.image,
        "command": ["dlr", "check-worker"],
        "env": [{"name": "PYTHONPATH", "value": str(folder)}],
    }
    spec = {
        "nodes": nodes,
        "timeoutSeconds": TIMEOUT_SECONDS,
        "stragglerRatio": checks.RATIO,
        "cordon": True,
        "template": {"spec": {"containers": [container]}},
    }
    cluster.apply(checks.node_check(spec), observation.namespace)
    check = checks.wait_until_finished(observation)
    print(checks.duration(check))
    assert killed.read_text() == "xx", "what a signal ends is tried once more"
    assert checks.verdicts(check) == {**dict.fromkeys(nodes, "Healthy"), "node-2": "Faulty"}
    assert "SIGKILL" in check["status"]["nodeResults"][2]["message"]
    checks.wait_until_cordoned(cluster, observation, "node-2")


HOPELESS: dict[str, tuple[Object, str, str]] = {
    "selects-nothing": (
        {"nodeSelector": {"no-such-label": "here"}},
        "NoNodes",
        "no node has the labels no-such-label=here",
    ),
    "no-such-node": ({"nodes": ["node-0", "node-99"]}, "NodeNotFound", "node-99"),
    "no-such-job": ({"jobName": "no-such-job"}, "JobNotFound", "no-such-job"),
}


def test_a_check_that_cannot_be_carried_out_fails_and_says_why(
    cluster: Cluster, observation: Observation
) -> None:
    for name, (spec, reason, expected) in HOPELESS.items():
        cluster.apply(checks.node_check(spec, name), observation.namespace)
        check = checks.wait_until_finished(observation, name)
        assert check["status"]["phase"] == "Failed"
        failed = jobs.condition(check, "Failed")
        assert failed["reason"] == reason, failed
        assert expected in failed["message"]
    assert not observation.pods()


def test_a_check_without_the_gpu_that_it_asks_for_could_not_tell(
    cluster: Cluster, observation: Observation
) -> None:
    nodes = checks.node_names(cluster)[:2]
    spec = {"nodes": nodes, "accelerator": "nvidia.com/gpu", "timeoutSeconds": TIMEOUT_SECONDS}
    cluster.apply(checks.node_check(spec), observation.namespace)
    check = checks.wait_until_finished(observation)
    assert set(checks.verdicts(check).values()) == {"Inconclusive"}
    assert all("nvidia.com/gpu" in result["message"] for result in check["status"]["nodeResults"])
    healthy = jobs.condition(check, "Healthy")
    assert (healthy["status"], healthy["reason"]) == ("Unknown", "Inconclusive")
    checks.assert_in_service(cluster, nodes)


@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_one_node_alone_is_checked_without_a_partner_and_a_second_check_of_it_waits(
    cluster: Cluster, observation: Observation
) -> None:
    node = checks.node_names(cluster)[0]
    spec = {"nodes": [node], "timeoutSeconds": TIMEOUT_SECONDS}

    def message() -> Object | None:
        waiting = jobs.condition(observation.objects(Kind.CHECK).get("second", {}), "Running")
        return waiting if waiting.get("reason") == "WaitingForCheck" else None

    with Held(NodeProbes(observation.namespace, node)) as hold:
        cluster.apply(checks.node_check(spec, "first"), observation.namespace)
        observation.wait_for("a probe of the first to be held", hold.caught.is_set)
        cluster.apply(checks.node_check(spec, "second"), observation.namespace)
        waiting = observation.wait_for("the second to say what it waits for", message)
    assert node in waiting["message"]
    assert "first" in waiting["message"]
    first = checks.wait_until_finished(observation, "first")
    second = checks.wait_until_finished(observation, "second")
    assert checks.verdicts(first) == checks.verdicts(second) == {node: "Healthy"}
    assert "no partner" in jobs.condition(first, "Healthy")["message"]
    assert first["status"]["completionTime"] <= second["status"]["startTime"]
