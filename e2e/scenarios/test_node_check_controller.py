"""The controller dies in the middle of a round: the next one goes on with it, to the same verdict."""

from __future__ import annotations

import signal

import pytest

from e2e import checks, embedded
from e2e.api import Kind
from e2e.cluster import Capability, Cluster
from e2e.faults import Broken, Held, NodeProbes
from e2e.observation import Observation

NODES = 4
TIMEOUT_SECONDS = 300
NODES_CHECKED = ["node-0", "node-1", "node-2", "node-3"]
BROKEN, BYSTANDER = "node-3", "node-0"


def replace_controller(cluster: Cluster, observation: Observation) -> None:
    """SIGKILL, and the next one leads."""
    controller = cluster.control_plane(embedded.CONTROLLER)
    killed = controller.pid()
    controller.signal(signal.SIGKILL)
    observation.wait_for("the next controller", lambda: controller.pid() not in (None, killed))
    last = renewed(cluster)
    observation.wait_for("the next controller to lead", lambda: renewed(cluster) != last)


def renewed(cluster: Cluster) -> str:
    """When the controller that leads last said so."""
    return str(cluster.controllers_lease()["renewTime"])


@pytest.mark.needs(Capability.CONTROL_PLANE)
@pytest.mark.needs(Capability.NODE_PROCESSES)
def test_a_check_outlives_the_controller_in_the_middle_of_round_1_and_of_round_2(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    with Broken(NodeProbes(namespace, BROKEN, "pair")):
        cluster.apply(
            checks.node_check({"nodes": NODES_CHECKED, "timeoutSeconds": TIMEOUT_SECONDS}), namespace
        )
        for number in (1, 2):
            checks.wait_for_round(observation, number)
            with Held(NodeProbes(namespace, BYSTANDER, "pair")) as hold:
                observation.wait_for("a probe to be held", hold.caught.is_set)
                replace_controller(cluster, observation)
                status = observation.objects(Kind.CHECK)["check"]["status"]
                assert (status["phase"], status["round"]) == ("Running", number)
        check = checks.wait_until_finished(observation)
    print(checks.duration(check))
    checks.assert_only_those_with(check, 1, BROKEN)
    assert check["status"].get("faultyNodes") == [BROKEN], observation.describe()
    assert checks.verdicts(check) == {**dict.fromkeys(NODES_CHECKED, "Healthy"), BROKEN: "Faulty"}
    checks.wait_until_cordoned(cluster, observation, BROKEN)
