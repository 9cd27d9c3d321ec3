"""Pods that one node keeps from starting."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers import cluster_model
from tests.reconcilers.api import Api
from tests.reconcilers.cluster_model import lose_node
from tests.reconcilers.life import JOB, Run, beginning, submit

BAD_NODE = "node-1"
MAIN = {"name": "main", "image": "x"}


def starts_nothing(monkeypatch: pytest.MonkeyPatch, reason: str, nodes: tuple[str, ...]) -> None:
    """Let Pods wait on these nodes, for a reason that their kubelets give."""
    kubelet = cluster_model._kubelet

    def fails(api: Api, pod: dict[str, Any]) -> None:
        node = pod["spec"].get("nodeName") or cluster_model._node_for(api, pod)
        if node not in nodes or "deletionTimestamp" in pod["metadata"]:
            kubelet(api, pod)
        elif not pod["spec"].get("nodeName"):
            name, waiting = pod["metadata"]["name"], {"reason": reason, "message": "no route to host"}
            api.patch(PODS, name, {"spec": {"nodeName": node}})
            waits = {"name": "main", "state": {"waiting": waiting}, "restartCount": 0}
            conditions = [{"type": "PodScheduled", "status": "True"}]
            status = {"phase": "Pending", "containerStatuses": [waits], "conditions": conditions}
            api.patch(PODS, name, {"status": status}, "status")

    monkeypatch.setattr(cluster_model, "_kubelet", fails)


async def an_hour_later(api: Api) -> None:
    while api.seconds < 3_600:
        run = Run(api)
        await run.settle()
        assert run.errors == []
        api.seconds += 60


async def incarnations(reason: str, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> tuple[list[int], str]:
    """Those of the workers, and the members of the world, after an hour."""
    starts_nothing(monkeypatch, reason, nodes)
    api = beginning()
    submit(api)
    await an_hour_later(api)
    members = api.get(ELASTICJOBS, JOB)["status"]["rendezvous"]["members"]
    return [worker["spec"]["incarnation"] for worker in api.list(ELASTICWORKERS)], members


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerError"])
async def test_a_pod_that_its_node_does_not_start_is_made_elsewhere(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await incarnations(reason, monkeypatch, BAD_NODE) == ([1, 2, 1], "0-2")


async def test_one_node_after_the_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ("node-1", "node-3", "node-4", "node-5")
    assert await incarnations("ImagePullBackOff", monkeypatch, *nodes) == ([1, 5, 1], "0-2")


async def test_where_no_pod_starts_none_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(f"node-{number}" for number in range(6))
    assert await incarnations("ImagePullBackOff", monkeypatch, *nodes) == ([1, 1, 1], "")


async def test_what_no_other_node_would_mend_makes_no_new_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "CreateContainerConfigError"
    assert await incarnations(reason, monkeypatch, BAD_NODE) == ([1, 1, 1], "0,2")


async def test_the_only_pod_of_a_job_that_has_trained_is_made_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = beginning()
    submit(api, replicaSpecs={"worker": {"replicas": 1, "template": {"spec": {"containers": [MAIN]}}}})
    await Run(api).settle()
    lose_node(api, "node-0")
    starts_nothing(monkeypatch, "FailedMount", (BAD_NODE,))
    await an_hour_later(api)
    (only,) = api.list(ELASTICWORKERS)
    assert only["spec"]["excludedNodes"] == ["node-0", BAD_NODE]
    assert api.get(ELASTICJOBS, JOB)["status"]["rendezvous"]["phase"] == "Formed"
