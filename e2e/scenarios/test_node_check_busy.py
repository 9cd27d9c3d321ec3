"""Checks on a busy machine: nobody is slow for that, and who is slow is not dead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from e2e import checks
from e2e.api import Kind
from e2e.cluster import Capability, Cluster
from e2e.faults import NodeProbes, Slowed
from e2e.observation import Observation

NODES = 6
CHECKS = 5
RATIO = 1.5
"""The default: half as slow again is suspicious."""
THROTTLED_SHARE = 0.1

pytestmark = [pytest.mark.needs(Capability.NODE_PROCESSES)]


@pytest.fixture
def burner() -> Iterator[None]:
    """A process that burns a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("burner")
def test_a_node_throttled_to_a_tenth_is_a_straggler_and_not_a_dead_node(
    cluster: Cluster, observation: Observation
) -> None:
    nodes = checks.node_names(cluster)
    slow = nodes[2]
    with Slowed(NodeProbes(observation.namespace, slow), THROTTLED_SHARE):
        cluster.apply(checks.node_check({"nodes": nodes, "stragglerRatio": RATIO}), observation.namespace)
        check = checks.wait_until_finished(observation)
    print(checks.duration(check))
    expected = {name: "Straggler" if name == slow else "Healthy" for name in nodes}
    assert checks.verdicts(check) == expected, observation.describe()
    assert observation.objects(Kind.CHECK)["check"]["status"]["stragglers"] == [slow]
