"""Checks of a cluster's nodes: the broken one is cordoned, the slow one is not, nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import checks
from e2e.api import Object
from e2e.cluster import Capability, Cluster
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
