"""A job's life as a gang of Kubernetes' own scheduler, with all controllers and the scheduler's stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import Forbidden
from controller.resources import PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, KUBERNETES_PODGROUPS
from tests.gang.city import City
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.process import Lag

pytestmark = pytest.mark.played


@pytest.fixture
async def city() -> AsyncIterator[City]:
    each = City(gpus=4)
    each.begin()
    yield each
    each.end()


async def test_without_room_for_the_minimum_no_pod_gets_a_node_and_the_job_has_the_schedulers_words(
    city: City,
) -> None:
    city.gpus = 2
    await city.begin_job(worker={"minReplicas": 3})
    await city.settle(5)
    assert city.bound() == [] and city.minimum() == 3
    warning = city.warning()
    assert warning["reason"] == "Unschedulable"
    assert "4 Pods cannot be scheduled" in warning["message"]
    assert "minCount (3) cannot be satisfied: 2 scheduled" in warning["message"]
    assert "since 2026-01-01T12:00:00Z" in warning["message"]
    await city.client.patch(
        ELASTICJOBS, "gang", {"spec": {"replicaSpecs": {"worker": {"minReplicas": 2}}}}, NAMESPACE
    )
    await city.settle(1)
    assert len(city.bound()) == 2, "as many as there is room for"


async def test_a_replacement_waits_for_no_other_and_a_job_without_pods_starts_as_a_gang_again(
    city: City,
) -> None:
    await city.begin_job()
    await city.settle(1)
    assert city.minimum() == 1, "its Pods run"

    def refuse(write: Write) -> None:
        if write.verb == "create" and write.name == "gang-worker-0-2":
            raise Forbidden(403, "Forbidden", "exceeded quota: pods")

    assert city.process is not None
    city.process.before_write = refuse
    city.lose(0, 1)
    await city.settle(5)
    assert "gang-worker-1-2" in city.bound(), "with the minimum of 4 it would wait for worker 0"
    assert city.warning()["reason"] == "PodRefused"

    city.gpus = 3
    city.lose(1, 2, 3)
    await city.settle(5)
    assert (city.minimum(), city.bound()) == (4, [])
    city.process.before_write = lambda write: None
    city.gpus = 4
    await city.settle(60)
    assert (city.minimum(), len(city.bound())) == (1, 4)


async def test_too_few_pods_are_told_since_nothing_else_tells_it(city: City) -> None:
    """A Pod of an earlier job of the name keeps the last one from being made."""
    metadata = {"name": "gang-worker-3-1", "namespace": NAMESPACE, "finalizers": ["backup.example.com"]}
    owner = {"kind": "ElasticWorker", "name": "gang-worker-3", "uid": "earlier", "controller": True}
    left = {"metadata": metadata | {"ownerReferences": [owner]}, "spec": {"containers": []}}
    city.api.create(PODS, left)
    city.api.patch(PODS, "gang-worker-3-1", {"status": {"phase": "Failed"}}, "status")
    await city.begin_job()
    await city.settle(30)
    assert city.bound() == []
    warning = city.warning()
    assert warning["reason"] == "PodGroupIncomplete"
    assert "the PodGroup gang has 3 of the 4 Pods for which the scheduler waits" in warning["message"]
    assert "since 2026-01-01" in warning["message"]
    assert len(city.events("PodGroupIncomplete")) == 1
    city.api.remove(PODS, "gang-worker-3-1")
    await city.settle(30)
    assert len(city.bound()) == 4 and not city.warning()


async def test_a_pod_that_is_refused_is_named_before_those_that_wait_for_it(city: City) -> None:
    def refuse(write: Write) -> None:
        if write.verb == "create" and write.name == "gang-worker-3-1":
            raise Forbidden(403, "Forbidden", "exceeded quota: pods")

    assert city.process is not None
    city.process.before_write = refuse
    await city.begin_job()
    await city.settle(30)
    warning = city.warning()
    assert warning["reason"] == "PodRefused" and "exceeded quota" in warning["message"]
    waiting = city.api.get(ELASTICWORKERS, "gang-worker-0")["status"]
    assert "has 3 of the 4 Pods" in waiting["message"]


async def test_a_server_without_the_gate_is_told_once_and_the_pods_start_one_by_one(city: City) -> None:
    city.api.has_gate = False  # type: ignore[attr-defined]
    city.gpus = 3
    await city.begin_job()
    await city.settle(30)
    assert len(city.bound()) == 3
    (message,) = city.events("SchedulingGroupDropped")
    assert "feature gate GenericWorkload" in message and "gang to none" in message
    assert "PodGroupIncomplete" not in {event.reason for event in city.api.events}


async def test_auto_makes_no_group_where_the_server_does_not_serve_it(city: City) -> None:
    city.api.unserved = frozenset({KUBERNETES_PODGROUPS})
    await city.begin_job()
    await city.settle(1)
    assert len(city.bound()) == 4
    assert not any("schedulingGroup" in pod["spec"] for pod in city.api.list(PODS))


async def test_kubernetes_waits_for_the_server_to_serve_it_and_says_how_it_would(city: City) -> None:
    city.api.unserved = frozenset({KUBERNETES_PODGROUPS})
    await city.begin_job(schedulingPolicy={"gang": "kubernetes"})
    await city.settle(5)
    assert city.api.list(PODS) == []
    message = city.warning()["message"]
    assert city.warning()["reason"] == "GangUnavailable"
    assert (
        "podgroups.scheduling.k8s.io" in message
        and "--runtime-config=scheduling.k8s.io/v1beta1=true" in message
    )
    city.api.unserved = frozenset()
    await city.settle(60)
    assert len(city.bound()) == 4


async def test_a_job_that_is_resumed_while_its_pods_still_end_has_its_gang_again(city: City) -> None:
    """Kubernetes keeps the deleted PodGroup for the Pods that name it."""
    await city.begin_job()
    await city.settle(1)
    before = city.api.get(KUBERNETES_PODGROUPS, "gang")["metadata"]["uid"]
    await city.client.patch(ELASTICJOBS, "gang", {"spec": {"suspend": True}}, NAMESPACE)
    await city.settle(1)
    group = city.group()
    assert group is not None and "deletionTimestamp" in group["metadata"]
    await city.client.patch(ELASTICJOBS, "gang", {"spec": {"suspend": False}}, NAMESPACE)
    await city.settle(1)
    for pod in city.api.list(PODS):
        if "deletionTimestamp" in pod["metadata"]:
            city.api.remove(PODS, pod)
    await city.settle(30)
    assert len(city.bound()) == 4 and city.minimum() == 1
    assert city.api.get(KUBERNETES_PODGROUPS, "gang")["metadata"]["uid"] != before


async def test_the_group_goes_with_the_job_s_end(city: City) -> None:
    await city.begin_job()
    await city.settle(1)
    await city.client.patch(
        ELASTICJOBS, "gang", {"status": {"phase": "Succeeded"}}, NAMESPACE, subresource="status"
    )
    await city.settle(1)
    group = city.group()
    assert group is None or "deletionTimestamp" in group["metadata"]


async def test_a_job_made_again_has_its_gang_soon_after_the_earlier_one_s_pods_ended(city: City) -> None:
    await city.begin_job()
    await city.settle(1)
    city.api.delete(ELASTICJOBS, "gang")
    await city.begin_job()
    await city.settle(60)
    assert city.events("PodGroupRefused") == []
    for pod in city.api.list(PODS):
        city.api.remove(PODS, pod)
    await city.settle(15)
    assert len(city.bound()) == 4 and city.minimum() == 1


MOMENTS = st.tuples(st.sets(st.integers(0, 3)), st.integers(0, 5), st.booleans())
"""Workers whose Pods are lost, GPUs that are left, and whether the controller begins afresh."""


@settings(max_examples=30, deadline=None)
@given(st.lists(MOMENTS, max_size=5), st.integers(1, 4), st.integers(0, 1_000))
async def test_whatever_is_lost_in_whatever_order_all_workers_run_once_there_is_room(
    moments: list[tuple[set[int], int, bool]], minimum: int, seed: int
) -> None:
    city = City(gpus=4)
    city.begin(Lag(versions=4, seed=seed))
    await city.begin_job(worker={"minReplicas": minimum}, schedulingPolicy={"gang": "kubernetes"})
    for lost, gpus, restarts in moments:
        city.gpus = gpus
        city.lose(*lost)
        if restarts:
            city.begin(Lag(versions=4, seed=seed))
        await city.settle(1)
    city.gpus = 4
    await city.settle(200)
    assert len(city.bound()) == 4 and city.minimum() == 1 and not city.warning()
    city.end()
