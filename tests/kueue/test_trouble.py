"""A job in a queue: what somebody sees of it, and what comes of Workloads, classes and nodes that others edit and lose."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import NODES
from reconcilers.kueue.workload import (
    FINALIZER,
    PRIORITIES,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    WORKLOADS,
    Workload,
)
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.kueue.cluster import GPU, Cluster
from tests.kueue.statuses import Config
from tests.kueue.test_reconcilers import HIGH
from tests.reconcilers.api import NAMESPACE, Write
from tests.reconcilers.cluster_model import Script, lose_node

JSON = dict[str, Any]

pytestmark = pytest.mark.played


def used(cluster: Cluster) -> int:
    return cluster.api.kueue.used("shared", "default", "nvidia.com/gpu")


def workloads(cluster: Cluster) -> list[Workload]:
    return [Workload(raw) for raw in cluster.api.kueue.workloads.values()]


def held(cluster: Cluster) -> Workload:
    mine = (each for each in workloads(cluster) if each.name != "other")
    (found,) = (each for each in mine if each.has_quota and not each.is_finished)
    return found


def edit(cluster: Cluster, workload: Workload, body: JSON) -> None:
    cluster.api.kueue.patch(NAMESPACE, workload.name, body)
    cluster.api.mirror()


async def with_quota(quota: int, **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.api.set_quota(quota)
    return await cluster.submit(**more).settle()


async def test_a_job_without_workers_is_ready_when_all_of_it_runs() -> None:
    cluster = Cluster()
    template = {"spec": {"containers": [GPU | {"command": ["dlr", "exec", "x"]}]}}
    specs = {type_: {"replicas": 1, "template": template} for type_ in ("chief", "ps")}
    metadata = {"name": "j", "namespace": NAMESPACE, "labels": {QUEUE_LABEL: "team"}}
    cluster.api.create(ELASTICJOBS, {"metadata": metadata, "spec": {"replicaSpecs": specs}})
    await cluster.settle(4_000)
    assert held(cluster).is_true("PodsReady") and len(cluster.pods) == 2
    assert "PodsReadyTimeout" not in str(cluster.api.events), "Kueue evicts what is not ready for 30 minutes"


async def test_a_job_scaled_to_nothing_is_not_evicted_for_it() -> None:
    cluster = await with_quota(8)
    cluster.api.patch(ELASTICJOBS, "j", {"spec": {"replicaSpecs": {"worker": {"replicas": 0}}}})
    await cluster.settle(4_000)
    assert not cluster.pods and used(cluster) == 0
    assert held(cluster).is_true("PodsReady")


async def test_a_job_whose_class_is_gone_still_makes_room_and_ends() -> None:
    cluster = Cluster()
    cluster.api.set_quota(8)
    cluster.has_class("high", 5)
    await cluster.submit(labels=HIGH).settle()
    del cluster.api.objects[PRIORITIES][None, "high"]
    await cluster.settle()
    cluster.meets(6)
    await cluster.settle()
    assert len(cluster.pods) == 2 and used(cluster) == 8
    assert "its priority class cannot be read" in cluster.status["admission"]["message"]
    assert held(cluster).raw["spec"]["priority"] == 5, "it keeps the priority that it has"
    cluster.script = Script(done=True)
    await cluster.settle()
    assert used(cluster) == 6


async def test_a_job_that_is_given_a_class_that_is_not_there_gives_its_quota_back_at_its_end() -> None:
    cluster = await with_quota(8)
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {PRIORITY_LABEL: "nosuch"}}})
    await cluster.settle()
    (message,) = {event.message for event in cluster.api.events if event.reason == "PriorityUnreadable"}
    assert "nosuch" in message and len(cluster.pods) == 8
    cluster.script = Script(done=True)
    await cluster.settle()
    assert used(cluster) == 0


async def test_the_value_of_a_class_that_kueue_copies_is_not_set_back() -> None:
    cluster = Cluster()
    cluster.api.set_quota(8)
    cluster.has_class("high", 5)
    await cluster.submit(labels=HIGH).settle(5)
    edit(cluster, held(cluster), {"spec": {"priority": 50}})
    await cluster.settle(5)
    assert held(cluster).raw["spec"]["priority"] == 50


async def test_what_kueue_refused_is_forgotten_when_it_is_wanted_no_more() -> None:
    cluster = await with_quota(0)
    cluster.api.kueue.down = True
    for replicas in (9, 8):
        cluster.api.patch(ELASTICJOBS, "j", {"spec": {"replicaSpecs": {"worker": {"replicas": replicas}}}})
        await cluster.settle(10)
    assert "webhook" not in cluster.status["admission"]["message"]


async def test_a_deleted_workload_that_anothers_finalizer_keeps_holds_nobody_up() -> None:
    cluster = await with_quota(8)
    before = held(cluster)
    edit(cluster, before, {"metadata": {"finalizers": [FINALIZER, "a.b/c"]}})
    cluster.goes(before.name)
    await cluster.settle()
    assert len(cluster.pods) == 8 and held(cluster).name != before.name and cluster.most <= 0


async def test_a_slice_that_kueue_admits_while_it_is_removed_does_not_stop_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our deletion would have marked the Workload that Kueue has just made the job's."""
    cluster = await with_quota(4)
    rounds, apply, refused = cluster.status["rendezvous"]["round"], cluster.api.apply, list[str]()

    def after_kueue(write: Write) -> JSON:
        if write.verb == "delete" and write.resource == WORKLOADS and not refused:
            cluster.api.set_quota(8)
            while moves := cluster.api.kueue.moves():
                moves[0].do()
            refused.append(write.name)
            try:
                apply(write)
            finally:
                cluster.api.mirror()
        return apply(write)

    monkeypatch.setattr(cluster.api, "apply", after_kueue)
    worker = {"replicas": 4}
    cluster.api.patch(ELASTICJOBS, "j", {"spec": {"replicaSpecs": {"worker": worker}}})
    await cluster.settle()
    assert refused and cluster.status["rendezvous"]["round"] == rounds and len(cluster.pods) == 4
    await cluster.settle()
    assert used(cluster) == 4 and len(cluster.pods) == 4


async def test_a_deleted_slice_that_anothers_finalizer_keeps_does_not_hide_an_eviction() -> None:
    cluster = await with_quota(4)
    (slice_,) = (each for each in workloads(cluster) if each.replaces)
    edit(cluster, slice_, {"metadata": {"finalizers": [FINALIZER, "a.b/c"]}})
    cluster.goes(slice_.name)
    await cluster.settle()
    cluster.meets(4)
    await cluster.settle()
    assert not cluster.pods and used(cluster) == 4, "the preemptor has what it needs"
    assert cluster.status["admission"]["reason"] == "Pending"


async def test_a_workload_that_somebody_disowns_is_followed_by_another() -> None:
    cluster = await with_quota(8)
    before = held(cluster)
    edit(cluster, before, {"metadata": {"ownerReferences": None}})
    await cluster.settle()
    (after,) = workloads(cluster)
    assert after.has_quota and after.name != before.name and len(cluster.pods) == 8


async def test_a_workload_that_loses_its_labels_is_named_in_the_status() -> None:
    cluster = await with_quota(8)
    name = held(cluster).name
    edit(cluster, held(cluster), {"metadata": {"labels": None}})
    await cluster.settle()
    assert cluster.status["admission"]["message"] == f"there is another Workload {name}: delete it"
    edit(cluster, held(cluster), {"metadata": {"finalizers": None}})
    cluster.goes(held(cluster).name)
    await cluster.settle()
    assert len(cluster.pods) == 8


async def test_a_job_that_kueue_has_deactivated_says_how_it_may_queue_again() -> None:
    cluster = Cluster()
    cluster.api.kueue._manager._config = Config(timeout_seconds=60, backoff_seconds=5, most_requeues=0)
    await full_of_cordons(cluster, True).submit().settle(200)
    assert not cluster.pods and used(cluster) == 0
    (workload,) = workloads(cluster)
    command = f"kubectl patch workloads.kueue.x-k8s.io -n {NAMESPACE} {workload.name} --type merge -p "
    assert command + """'{"spec":{"active":true}}'""" in cluster.status["admission"]["message"]
    full_of_cordons(cluster, False)
    edit(cluster, workload, {"spec": {"active": True}})
    await cluster.settle()
    assert len(cluster.pods) == 4


def full_of_cordons(cluster: Cluster, on: bool) -> Cluster:
    for node in cluster.api.list(NODES):
        cluster.api.patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": on or None}})
    return cluster


async def test_replica_groups_follow_the_labels_of_their_job() -> None:
    cluster = Cluster()
    policy = {"replicaGroups": {"workers": 2}}
    worker = {"replicas": 8, "template": {"spec": {"containers": [GPU]}}}
    spec = {"replicaSpecs": {"worker": worker}, "elasticPolicy": policy}
    metadata = {"name": "j", "namespace": NAMESPACE, "labels": {QUEUE_LABEL: "team"}}
    cluster.api.create(ELASTICJOBS, {"metadata": metadata, "spec": spec})
    await cluster.settle()
    assert len(cluster.pods) == 4
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {QUEUE_LABEL: None}}})
    await cluster.settle()
    assert len(cluster.pods) == 8 and not cluster.api.kueue.workloads
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {QUEUE_LABEL: "team"}}})
    await cluster.settle()
    assert len(cluster.pods) == 4 and len(cluster.api.kueue.workloads) == 4


async def test_a_worker_whose_node_is_lost_gets_its_next_pod_before_the_lost_one_is_gone() -> None:
    cluster = await with_quota(8, policy={"heartbeatTimeoutSeconds": 30})
    lose_node(cluster.api, "node-1")
    await cluster.settle(120)
    incarnations = {pod["metadata"]["name"] for pod in cluster.pods}
    assert {"j-worker-1-1", "j-worker-1-2"} <= incarnations and len(incarnations) == 9
    assert cluster.status["rendezvous"]["members"] == "0-7"


async def test_a_job_with_a_pod_on_a_lost_node_still_makes_room() -> None:
    cluster = await with_quota(8)
    cluster.meets(8)
    await cluster.settle(2)
    lose_node(cluster.api, cluster.pods[0]["spec"]["nodeName"])
    await cluster.settle(120)
    assert used(cluster) == 8 and len(cluster.pods) <= 1
    assert Workload(cluster.api.kueue.workloads[NAMESPACE, "other"]).is_admitted


async def test_a_pod_that_can_not_be_made_holds_no_preemptor_up() -> None:
    """Its name is that of the Pod on the lost node, so the worker's next Pod is granted and never comes."""
    cluster = await with_quota(8)
    lose_node(cluster.api, "node-1")
    cluster.meets(8)
    await cluster.settle(80)
    cluster.goes()
    await cluster.settle(5)
    cluster.meets(3)
    await cluster.settle(120)
    assert Workload(cluster.api.kueue.workloads[NAMESPACE, "other"]).is_admitted
    assert used(cluster) - 3 == cluster.status["admission"]["workers"] >= 2


async def test_a_deleted_job_with_a_pod_on_a_lost_node_lets_its_workload_go() -> None:
    cluster = await with_quota(8)
    lose_node(cluster.api, "node-1")
    cluster.api.delete(ELASTICJOBS, "j")
    await cluster.settle(120)
    assert not cluster.api.kueue.workloads


async def test_what_is_granted_beyond_whole_node_units_is_given_back() -> None:
    cluster = await with_quota(5, least=2, policy={"nodeUnit": 2})
    assert (len(cluster.pods), used(cluster)) == (4, 4)
    cluster.api.set_quota(7)
    await cluster.settle()
    assert (len(cluster.pods), used(cluster)) == (6, 6)
    assert (
        next(each for each in workloads(cluster) if each.replaces and not each.has_quota).count("worker") == 8
    )
    cluster.meets(3)
    await cluster.settle()
    assert (len(cluster.pods), used(cluster)) == (4, 7)
    cluster.goes()
    cluster.api.set_quota(8)
    await cluster.settle()
    assert (len(cluster.pods), used(cluster)) == (8, 8)


async def test_a_job_of_a_class_that_is_not_there_says_so_and_begins_when_it_is() -> None:
    cluster = await with_quota(8, labels=HIGH)
    assert cluster.status["phase"] == "Suspended" and not cluster.api.kueue.workloads
    expected = "its priority class cannot be read: WorkloadPriorityClass high not found"
    assert cluster.status["message"] == expected
    cluster.has_class("high", 7)
    await cluster.settle()
    assert len(cluster.pods) == 8 and held(cluster).raw["spec"]["priority"] == 7


# --- what somebody sees of a job in a queue -------------------------------------------------------------------


def other(cluster: Cluster) -> Workload:
    return Workload(cluster.api.kueue.workloads[NAMESPACE, "other"])


async def test_a_job_whose_preemptor_needs_all_waits_until_there_is_room_again() -> None:
    cluster = await with_quota(8)
    cluster.meets(7)
    await cluster.settle()
    assert other(cluster).is_admitted and not cluster.pods
    assert cluster.status["admission"]["workers"] == 0
    assert "7 more needed" in cluster.status["admission"]["message"]
    cluster.api.set_quota(9)
    await cluster.settle()
    assert len(cluster.pods) == 2


async def test_a_suspended_job_gives_its_quota_back_and_comes_back_without_the_priority_that_it_lost() -> (
    None
):
    cluster = Cluster().has_class("high", 5)
    cluster.api.set_quota(8)
    await cluster.submit(labels=HIGH).settle()
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {PRIORITY_LABEL: None}}})
    await cluster.settle()
    assert len(cluster.pods) == 8, "it cannot be changed while there is quota"
    for suspend, count in ((True, 0), (False, 8)):
        cluster.api.patch(ELASTICJOBS, "j", {"spec": {"suspend": suspend}})
        await cluster.settle()
        assert (len(cluster.pods), used(cluster)) == (count, count)
    assert held(cluster).raw["spec"].get("priority", 0) == 0


async def test_a_queue_that_is_not_there_is_named_in_kueues_words() -> None:
    cluster = await with_quota(8, labels={QUEUE_LABEL: "three"})
    assert cluster.status["admission"]["message"] == "LocalQueue three doesn't exist"
