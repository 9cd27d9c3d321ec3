"""Pods of a slot that leave: for how long their training processes may run, and which Pods wait for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.resources import NODES, PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.worker.leavers import OVERDUE_SECONDS
from tests.reconcilers.api import merged
from tests.reconcilers.build import terminated
from tests.reconcilers.worker_stage import WORKER, Api, Controller

GRACE_SECONDS = 30
FIRST, SECOND = f"{WORKER}-1", f"{WORKER}-2"


async def training(api: Api) -> Controller:
    api.apply_job()
    controller = Controller(api)
    await controller.look()
    api.pod_phase("Running")
    api.report("Running")
    await controller.look()
    return controller


def delete(api: Api, grace_seconds: int = GRACE_SECONDS) -> None:
    mark = {"deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": grace_seconds}
    api.put(PODS, merged(api.get(PODS, FIRST), {"metadata": mark}))


def relaunch(api: Api, **spec: Any) -> None:
    api.patch(ELASTICWORKERS, WORKER, {"spec": {"incarnation": 2} | spec})


def end_container(api: Api) -> None:
    api.put(PODS, merged(api.get(PODS, FIRST), {"status": {"containerStatuses": [terminated(143)]}}))


def lose_node(api: Api) -> None:
    lost = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    api.put(NODES, {"metadata": {"name": "node-0"}, "status": {"conditions": [lost]}})


def pass_seconds(seconds: float) -> Callable[[Api], None]:
    def act(api: Api) -> None:
        api.seconds += seconds

    return act


@pytest.mark.parametrize(
    ("happens", "leaves"),
    [
        (lambda api: None, [FIRST]),
        (pass_seconds(GRACE_SECONDS), [FIRST]),
        (pass_seconds(GRACE_SECONDS + OVERDUE_SECONDS + 1), []),
        (end_container, []),
        (lambda api: api.remove(PODS, FIRST), []),
        (lose_node, []),
    ],
    ids=["nothing", "within its grace", "its grace is over", "container ended", "Pod gone", "node lost"],
)
async def test_a_deleted_pod_leaves_until_nothing_of_it_can_train(
    happens: Callable[[Api], None], leaves: list[str]
) -> None:
    api = Api()
    controller = await training(api)
    delete(api)
    await controller.look()
    assert api.status["leavingPods"] == [FIRST]
    relaunch(api)
    result = await controller.look()
    assert api.status["leavingPods"] == [FIRST] and api.find(PODS, SECOND), "the Pod comes at once"
    assert result.requeue_after_seconds == 5
    happens(api)
    await Controller(api).look() if leaves else await controller.look()  # also with a new controller
    assert api.status["leavingPods"] == leaves


async def test_an_outage_of_the_api_server_is_no_end_of_a_grace() -> None:
    api = Api()
    controller = await training(api)
    delete(api)
    await controller.look()
    api.seconds += 100
    controller.contact_broke()
    await controller.look()
    assert api.status["leavingPods"] == [FIRST]


def replaced_for_its_failure(api: Api) -> None:
    api.report("Failed")
    relaunch(api, replacedFor="OOM")


def killed_with_a_sidecar(api: Api) -> None:
    end_container(api)
    delete(api)


@pytest.mark.parametrize(
    ("ends", "leaves"),
    [
        (relaunch, [FIRST]),
        (replaced_for_its_failure, []),
        (lambda api: api.report("Stopped"), []),
        (lambda api: delete(api, grace_seconds=0), []),
        (killed_with_a_sidecar, []),
        (lose_node, []),
    ],
    ids=["replaced while it trains", "for its failure", "stopped", "by force", "with a sidecar", "node lost"],
)
async def test_only_a_pod_that_has_the_time_to_save_leaves(
    ends: Callable[[Api], None], leaves: list[str]
) -> None:
    api = Api()
    controller = await training(api)
    ends(api)
    await controller.look()
    relaunch(api)
    await controller.look()
    assert api.status["leavingPods"] == leaves
    api.seconds += 1
    await controller.look()
    assert api.status["leavingPods"] == leaves, "one that has left is not added again"


async def test_the_pod_of_an_earlier_job_of_the_name_is_waited_for_by_whose_processes_start_at_once() -> None:
    """Nobody knows of a new job's Pod yet whether its processes wait for a world."""
    api = Api()
    controller = await training(api)
    delete(api)
    await controller.look()
    relaunch(api)
    await controller.look()
    api.remove(PODS, FIRST)
    api.pod_phase("Running")
    for resource, name in ((ELASTICJOBS, "digits"), (ELASTICWORKERS, WORKER)):
        api.remove(resource, name)
    api.apply_job()
    await controller.look()
    assert api.status["leavingPods"] == [SECOND] and api.find(PODS, FIRST) is None
    assert api.status["conditions"][0]["reason"] == "WaitingForDeletion"
    api.collect_garbage()
    api.remove(PODS, SECOND)
    await controller.look()
    assert api.status["leavingPods"] == [] and api.find(PODS, FIRST)


async def test_the_pod_of_an_earlier_worker_leaves_though_it_has_the_name_of_the_next_one() -> None:
    """No world may be formed beside it, of whatever other slots."""
    api = Api()
    controller = await training(api)
    for resource, name in ((ELASTICJOBS, "digits"), (ELASTICWORKERS, WORKER)):
        api.remove(resource, name)
    api.apply_job()
    await controller.look()
    assert api.status["leavingPods"] == [FIRST], "nobody has deleted it yet"
    delete(api)
    await controller.look()
    assert api.status["leavingPods"] == [FIRST]
    api.collect_garbage()
    api.remove(PODS, FIRST)
    await controller.look()
    api.pod_phase("Running")
    await controller.look()
    assert api.status["leavingPods"] == [] and api.find(PODS, FIRST)
