"""A gang gets its nodes all at once, or none of them."""

from __future__ import annotations

import pytest

from e2e import elasticity, jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation

POD_GROUPS = "podgroups.scheduling.x-k8s.io"


@pytest.mark.named
def test_no_pod_of_a_gang_of_four_runs_with_room_for_three_and_all_do_with_room_for_four(
    cluster: Cluster, observation: Observation
) -> None:
    if cluster.kubectl("get", "crd", POD_GROUPS, check=False).returncode != 0:
        pytest.skip("this cluster's scheduler has no coscheduling plugin")
    gang = {"gang": "coscheduling"}
    manifest = elasticity.idle(cluster, workers=4, minimum=4, maximum=4, schedulingPolicy=gang)
    cluster.kubectl("cordon", "node-0")
    try:
        cluster.apply(jobs.one_a_node(manifest), observation.namespace)

        def reason() -> Object | None:
            warning = jobs.warning(observation.job("idle"), "WorkersUnscheduled")
            message = warning.get("message", "")
            return (
                warning if "3 could get one" in message and "4 Pods cannot be scheduled" in message else None
            )

        observation.wait_for("the job to say why its Pods wait", reason)
        assert len(observation.pods()) == 4
        assert not [pod for pod in observation.history[Kind.POD] if pod["spec"].get("nodeName")]
    finally:
        cluster.kubectl("uncordon", "node-0")
    world = elasticity.wait_for_world(observation, [0, 1, 2, 3], "idle")
    elasticity.wait_until_all_run(observation, world, "idle")
    nodes = {pod["spec"]["nodeName"] for pod in observation.pods().values()}
    assert nodes == {"node-0", "node-1", "node-2", "node-3"}
