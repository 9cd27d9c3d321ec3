"""Objects that are deleted, and that finalizers of others hold."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import NETWORKPOLICIES, PODDISRUPTIONBUDGETS, PODS, Resource
from reconcilers.runtime.kinds import (
    ELASTICJOBS,
    ELASTICWORKERS,
    ELASTICWORLDS,
    NODECHECKS,
    VOLCANO_PODGROUPS,
)
from tests.reconcilers.api import NAMESPACE, Api
from tests.reconcilers.life import JOB, Run, beginning, edit, replicas, submit
from tests.reconcilers.process import Process

HOLDER = "example.com/hold"
MAIN = {"name": "main", "image": "x"}
BESIDE = (NETWORKPOLICIES, PODDISRUPTIONBUDGETS, VOLCANO_PODGROUPS)


async def settled(api: Api) -> None:
    """Play on with a new controller."""
    run = Run(api)
    await run.settle()
    assert run.errors == []


async def training(**spec: Any) -> Api:
    api = beginning()
    submit(api, **spec)
    await settled(api)
    assert api.get(ELASTICJOBS, JOB)["status"]["phase"] == "Running"
    return api


def hold(api: Api, resource: Resource, name: str, *finalizers: str) -> None:
    obj = api.get(resource, name)
    api._put(resource, obj | {"metadata": obj["metadata"] | {"finalizers": list(finalizers)}})


def living_pods(api: Api) -> list[str]:
    return sorted(each["metadata"]["name"] for each in api.list(PODS) if each["status"]["phase"] == "Running")


async def test_a_deleted_job_that_a_finalizer_holds_stops_and_says_so() -> None:
    api = await training()
    hold(api, ELASTICJOBS, JOB, HOLDER)
    api.delete(ELASTICJOBS, JOB)
    await settled(api)
    assert living_pods(api) == []
    status = api.get(ELASTICJOBS, JOB)["status"]
    assert (status["phase"], status["replicaStatuses"]["worker"]["active"]) == ("Suspended", 0)
    (condition,) = (each for each in status["conditions"] if each["type"] == "Suspended")
    assert condition["message"] == f"the job is deleted, held by its finalizers {HOLDER}"


async def test_a_job_that_is_not_deleted_lives_whatever_its_finalizers_are() -> None:
    api = await training()
    hold(api, ELASTICJOBS, JOB, "orphan")
    edit(api, replicas(2))
    await settled(api)
    assert living_pods(api) == [f"{JOB}-worker-0-1", f"{JOB}-worker-1-1"]


async def test_beside_a_deleted_job_that_a_finalizer_holds_its_policy_alone_stays() -> None:
    api = await training(schedulingPolicy={"gang": "volcano"})
    counts = [len(api.list(each)) for each in BESIDE]
    hold(api, ELASTICJOBS, JOB, HOLDER, "orphan")
    api.delete(ELASTICJOBS, JOB)
    await settled(api)
    assert [len(api.list(each)) for each in BESIDE] == counts == [1, 1, 1], "it goes without what it made"
    hold(api, ELASTICJOBS, JOB, HOLDER)
    await settled(api)
    assert [len(api.list(each)) for each in BESIDE] == [1, 0, 0]
    api.remove(NETWORKPOLICIES, *api.list(NETWORKPOLICIES))
    await settled(api)
    assert api.list(NETWORKPOLICIES) == [], "it is not made again"


async def test_a_job_that_garbage_collection_alone_holds_says_that_it_is_being_deleted() -> None:
    api = await training()
    hold(api, ELASTICJOBS, JOB, "foregroundDeletion")
    api.delete(ELASTICJOBS, JOB)
    await settled(api)
    conditions = api.get(ELASTICJOBS, JOB)["status"]["conditions"]
    assert [each["message"] for each in conditions if each["type"] == "Suspended"] == [
        "the job is being deleted"
    ]


@pytest.mark.parametrize(("finalizers", "left"), [((HOLDER,), 0), ((HOLDER, "orphan"), 2)])
async def test_pods_of_a_deleted_check_that_a_finalizer_holds_go_unless_it_goes_without_them(
    finalizers: tuple[str, ...], left: int
) -> None:
    api = beginning()
    nodes = {"nodes": ["node-1", "node-2"]}
    api.create(NODECHECKS, {"metadata": {"name": "c", "namespace": NAMESPACE}, "spec": nodes})
    process = Process(api)
    while len(api.list(PODS)) < 2:
        assert await process.step() or process.cache.catch_up()
    while await process.step() or process.cache.catch_up():
        pass  # no look at anything is to come, but for what the deletion wakes
    hold(api, NODECHECKS, "c", *finalizers)
    api.delete(NODECHECKS, "c")
    while process.cache.catch_up() or await process.step():
        pass
    assert len(api.list(PODS)) == left


async def test_a_job_that_is_deleted_in_the_foreground_makes_nothing_again() -> None:
    api = await training()
    hold(api, ELASTICJOBS, JOB, HOLDER, "foregroundDeletion")
    api.delete(ELASTICJOBS, JOB)
    for resource in (ELASTICWORKERS, ELASTICWORLDS, PODS):
        for obj in api.list(resource):
            api.remove(resource, obj)
    await settled(api)
    assert [api.list(each) for each in (ELASTICWORKERS, ELASTICWORLDS, PODS)] == [[], [], []]
    assert api.get(ELASTICJOBS, JOB)["status"]["replicaStatuses"]["worker"]["active"] == 0


async def test_pods_of_a_job_that_is_deleted_without_them_train_on() -> None:
    api = await training()
    pods = living_pods(api)
    hold(api, ELASTICJOBS, JOB, HOLDER, "orphan")
    api.delete(ELASTICJOBS, JOB)
    await settled(api)
    assert living_pods(api) == pods != []


async def test_the_pod_of_a_deleted_worker_that_a_finalizer_holds_goes() -> None:
    api = await training()
    hold(api, ELASTICWORKERS, f"{JOB}-worker-2", HOLDER)
    edit(api, replicas(2))
    await settled(api)
    assert "deletionTimestamp" in api.get(ELASTICWORKERS, f"{JOB}-worker-2")["metadata"]
    assert living_pods(api) == [f"{JOB}-worker-0-1", f"{JOB}-worker-1-1"]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_job_says_what_holds_a_worker_that_it_waits_for(count: int) -> None:
    api = await training()
    for index in range(count):
        hold(api, ELASTICWORKERS, f"{JOB}-worker-{index}", HOLDER)
        api.delete(ELASTICWORKERS, f"{JOB}-worker-{index}")
    await settled(api)
    status = api.get(ELASTICJOBS, JOB)["status"]
    (warning,) = (each for each in status["warnings"] if each["type"] == "WorkersNotMade")
    assert f"{JOB}-worker-0 is held by its finalizers {HOLDER}" in warning["message"]
    assert warning["message"].endswith("; and 1 more worker") is (count == 2)
    for index in range(count):
        hold(api, ELASTICWORKERS, f"{JOB}-worker-{index}")
        api.remove(ELASTICWORKERS, api.get(ELASTICWORKERS, f"{JOB}-worker-{index}"))
    await settled(api)
    status = api.get(ELASTICJOBS, JOB)["status"]
    assert (status["phase"], status["warnings"]) == ("Running", [])


async def test_a_job_says_what_holds_a_group_that_it_waits_for() -> None:
    group = f"{JOB}-group-1"
    api = await training(
        replicaSpecs={"worker": {"replicas": 6, "template": {"spec": {"containers": [MAIN]}}}},
        elasticPolicy={"lastCallSeconds": 5, "replicaGroups": {"workers": 2, "min": 2}},
    )
    hold(api, ELASTICJOBS, group, HOLDER)
    api.delete(ELASTICJOBS, group)
    await settled(api)
    (warning,) = api.get(ELASTICJOBS, JOB)["status"]["warnings"]
    assert (warning["type"], warning["message"]) == (
        "GroupsNotMade",
        f"groups cannot be created: the deleted ElasticJob {group} is held by its finalizers {HOLDER}",
    )
    hold(api, ELASTICJOBS, group)
    api.remove(ELASTICJOBS, api.get(ELASTICJOBS, group))
    await settled(api)
    status = api.get(ELASTICJOBS, JOB)["status"]
    assert (status["warnings"], len(status["groups"])) == ([], 3)
