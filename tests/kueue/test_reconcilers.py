"""All reconcilers, with a cluster and Kueue in memory: what they come to, wherever the controller dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.resources import NODES, PODDISRUPTIONBUDGETS
from crds import names
from reconcilers.kueue.workload import (
    GROWTH_PRIORITY,
    PRIORITIES,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    Workload,
)
from reconcilers.observed.ownership import belongs_to
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.kueue.cluster import Cluster
from tests.reconcilers.api import NAMESPACE
from tests.reconcilers.cluster_model import Script
from tests.reconcilers.life import plan

JSON = dict[str, Any]
HIGH = {QUEUE_LABEL: "team", PRIORITY_LABEL: "high"}

pytestmark = pytest.mark.played


async def whole_life(cluster: Cluster, note: Callable[[str, Cluster], None] = lambda *_: None) -> None:
    """A start in part, growth, a preemption, the end."""
    await cluster.submit().settle()
    note("started", cluster)
    cluster.api.set_quota(8)
    await cluster.settle()
    note("grown", cluster)
    cluster.meets(6)
    await cluster.settle()
    note("shrunk", cluster)
    cluster.goes()
    await cluster.settle()
    note("back", cluster)
    cluster.script = Script(done=True)
    await cluster.settle()
    note("over", cluster)


async def test_a_job_starts_in_part_grows_shrinks_for_a_preemptor_and_ends() -> None:
    seen: dict[str, tuple[int, str]] = {}
    rounds: list[int] = []

    def note(moment: str, cluster: Cluster) -> None:
        seen[moment] = len(cluster.pods), cluster.status["phase"]
        rounds.append(cluster.status["rendezvous"]["round"] if "rendezvous" in cluster.status else 0)

    cluster = Cluster()
    await whole_life(cluster, note)
    assert seen == {
        "started": (4, "Running"),
        "grown": (8, "Running"),
        "shrunk": (2, "Running"),
        "back": (8, "Running"),
        "over": (0, "Succeeded"),
    }
    assert cluster.most <= 0
    assert cluster.api.kueue.used("shared", "default", "nvidia.com/gpu") == 0
    assert rounds[:4] == [1, 2, 3, 4], "each change of the quota is one round"


@pytest.mark.parametrize("kill_after", [1, 2, 5])
async def test_a_controller_that_dies_after_every_few_writes_comes_to_the_same(kill_after: int) -> None:
    cluster = Cluster(kill_after=kill_after)
    counts: list[int] = []
    await whole_life(cluster, lambda _, at: counts.append(len(at.pods)))
    assert counts == [4, 8, 2, 8, 0] and cluster.most <= 0


async def test_a_deleted_job_leaves_nothing_and_one_of_its_name_begins() -> None:
    cluster = await Cluster().submit().settle()
    cluster.api.delete(ELASTICJOBS, "j")
    await cluster.settle()
    assert not cluster.api.kueue.workloads and not cluster.pods
    cluster.submit()
    cluster.api.delete(ELASTICJOBS, "j")
    await cluster.submit().settle()
    uid = cluster.api.get(ELASTICJOBS, "j")["metadata"]["uid"]
    assert len(cluster.pods) == 4
    assert all(belongs_to(raw, uid) for raw in cluster.api.kueue.workloads.values())


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ({"queueingStrategy": "StrictFIFO"}, "the ClusterQueue shared is StrictFIFO"),
        (
            {"admissionChecksStrategy": {"admissionChecks": []}},
            "the ClusterQueue shared has admission checks",
        ),
    ],
)
async def test_a_job_keeps_its_size_where_a_slice_would_do_harm_and_says_why(queue: JSON, why: str) -> None:
    cluster = Cluster()
    cluster.api.set_quota(4, **queue)
    await cluster.submit().settle()
    cluster.api.set_quota(8, **queue)
    await cluster.settle()
    assert len(cluster.pods) == 4 and len(cluster.api.kueue.workloads) == 1
    assert cluster.status["admission"]["message"].startswith(f"4 of 8 Pods are granted: {why}")
    assert cluster.status["admission"]["fixed"]


async def test_a_job_has_the_value_of_its_priority_class_and_grows_with_another() -> None:
    cluster = Cluster().has_class("high", 100).has_class("idle", -10)
    labels = {QUEUE_LABEL: "team", PRIORITY_LABEL: "high", GROWTH_PRIORITY: "idle"}
    await cluster.submit(labels=labels).settle()
    priorities = {
        bool(Workload(raw).replaces): raw["spec"]["priority"] for raw in cluster.api.kueue.workloads.values()
    }
    assert priorities == {False: 100, True: -10}
    cluster.api.set_quota(8)
    await cluster.settle()
    (held,) = cluster.api.kueue.workloads.values()
    assert held["spec"]["priority"] == 100 and len(cluster.pods) == 8


async def test_a_job_outside_of_queues_has_no_workload() -> None:
    cluster = await Cluster().submit(labels={}).settle()
    assert len(cluster.pods) == 8 and "admission" not in cluster.status and not cluster.api.kueue.workloads


async def test_a_job_that_leaves_its_queue_saves_and_runs_without() -> None:
    cluster = await Cluster().submit().settle()
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {QUEUE_LABEL: None}}})
    await cluster.settle()
    assert len(cluster.pods) == 8 and "admission" not in cluster.status and not cluster.api.kueue.workloads


@pytest.mark.parametrize("quota", [0, 4])
async def test_a_job_whose_queue_is_not_served_any_more_says_so_and_goes_on_when_it_is(quota: int) -> None:
    cluster = Cluster()
    cluster.api.set_quota(quota)
    await cluster.submit().settle()
    cluster.queues, cluster.process = False, None
    cluster.api.set_quota(8)
    await cluster.settle()
    admission = cluster.status["admission"]
    assert (admission["workers"], admission["reason"]) == (quota, "QueueNotServed")
    assert "runs without --kueue" in admission["message"] and len(cluster.pods) == quota
    assert quota or "runs without --kueue" in cluster.status["message"]
    assert [event.reason for event in cluster.api.events].count("QueueNotServed") == 1
    cluster.queues, cluster.process = True, None
    await cluster.settle()
    assert len(cluster.pods) == 8 and cluster.status["admission"]["reason"] == "Admitted"
    assert not cluster.status["admission"].get("fixed")


@pytest.mark.parametrize("quota", [0, 4])
async def test_a_job_that_leaves_a_queue_which_is_not_served_has_no_limit(quota: int) -> None:
    cluster = Cluster()
    cluster.api.set_quota(quota)
    await cluster.submit().settle()
    cluster.queues, cluster.process = False, None
    cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {QUEUE_LABEL: None}}})
    await cluster.settle()
    assert "admission" not in cluster.status and len(cluster.pods) == 8
    said = [event.message for event in cluster.api.events if event.reason == "Granted"][-1]
    assert f"its Workload {next(iter(cluster.api.kueue.workloads))[1]} keeps its quota" in said


async def test_a_job_waits_for_kueue_that_is_not_there_and_says_so() -> None:
    cluster = Cluster()
    cluster.api.kueue.down = True
    await cluster.submit().settle(20.0)
    assert not cluster.pods
    (message,) = [event.message for event in cluster.api.events if event.reason == "WorkloadRefused"]
    assert "failed calling webhook" in message
    assert "failed calling webhook" in cluster.status["admission"]["message"]
    assert "failed calling webhook" in cluster.status["message"]
    cluster.api.kueue.down = False
    await cluster.settle()
    assert len(cluster.pods) == 4


async def test_a_job_that_multikueue_dispatches_has_a_workload_and_nothing_else() -> None:
    cluster = await Cluster().submit(managed_by="kueue.x-k8s.io/multikueue").settle()
    (held,) = (Workload(raw) for raw in cluster.api.kueue.workloads.values() if Workload(raw).has_quota)
    assert not cluster.pods and "status" not in cluster.api.get(ELASTICJOBS, "j")
    cluster.api.kueue.patch(NAMESPACE, held.name, {"spec": {"active": False}})
    cluster.api.mirror()
    await cluster.settle()
    assert cluster.api.kueue.used("shared", "default", "nvidia.com/gpu") == 0, (
        "it gives back what it is to give"
    )


@pytest.mark.parametrize(("count", "is_taken"), [(8, True), (7, False)])
async def test_a_copy_takes_the_workload_that_was_made_for_it(count: int, is_taken: bool) -> None:
    cluster = Cluster()
    cluster.comes("made", count, names.WORKER, 2)
    await cluster.submit(annotations={"kueue.x-k8s.io/prebuilt-workload-name": "made"}).settle()
    (made,) = map(Workload, cluster.api.kueue.workloads.values())
    assert made.conditions.get("Finished", {}).get("reason") == (None if is_taken else "OutOfSync")
    assert len(cluster.pods) == (4 if is_taken else 0)
    cluster.api.set_quota(8)
    await cluster.settle()
    assert len(cluster.api.kueue.workloads) == 1, "it keeps its size"


async def test_a_job_neither_takes_nor_ends_the_workload_of_another() -> None:
    cluster = await Cluster().submit().settle()
    (theirs,) = (raw for raw in cluster.api.kueue.workloads.values() if Workload(raw).has_quota)
    name = theirs["metadata"]["name"]
    thief = {"kueue.x-k8s.io/prebuilt-workload-name": name}
    for job, most in (("alike", 8), ("other", 7)):
        await cluster.submit(most, name=job, annotations=thief).settle()
        held = cluster.api.kueue.workloads[NAMESPACE, name]
        assert held["metadata"]["ownerReferences"] == theirs["metadata"]["ownerReferences"]
        assert not Workload(held).is_finished
        message = cluster.api.get(ELASTICJOBS, job)["status"]["admission"]["message"]
        assert message.startswith(f"the Workload {name} belongs to another job: ")


async def test_a_copy_keeps_the_workload_that_was_made_for_it_when_it_is_preempted() -> None:
    cluster = Cluster().has_class("high", 5)
    cluster.comes("made", 4, names.WORKER, 2)
    annotations = {"kueue.x-k8s.io/prebuilt-workload-name": "made"}
    await cluster.submit(4, labels=HIGH, annotations=annotations).settle()
    assert len(cluster.pods) == 4
    (made,) = map(Workload, cluster.api.kueue.workloads.values())
    assert made.raw["spec"].get("priority", 0) == 0, "it is compared with the one of the other cluster"
    cluster.meets(2)
    await cluster.settle()
    (made,) = (Workload(w) for (_, n), w in cluster.api.kueue.workloads.items() if n == "made")
    assert not made.is_finished, "MultiKueue takes the end of its Workload for the job's end"
    assert not any(Workload(raw).replaces for raw in cluster.api.kueue.workloads.values())


async def test_a_job_whose_priority_class_is_gone_still_gives_its_quota_back() -> None:
    cluster = await Cluster().has_class("high", 100).submit(labels=HIGH).settle()
    del cluster.api.objects[PRIORITIES][None, "high"]
    cluster.process = None  # another controller, which never read the class
    cluster.script = Script(done=True)
    await cluster.settle(120.0)
    assert cluster.status["phase"] == "Succeeded"
    assert cluster.api.kueue.used("shared", "default", "nvidia.com/gpu") == 0
    assert not any(Workload(raw).has_finalizer for raw in cluster.api.kueue.workloads.values())
    assert cluster.process is not None and cluster.process.next_due is None, "nothing is asked again"


async def test_another_priority_class_counts_at_once() -> None:
    cluster = Cluster().has_class("low", 1).has_class("high", 100)
    await cluster.submit(4, labels={QUEUE_LABEL: "team", PRIORITY_LABEL: "low"}).settle()
    for name, value in (("high", 100), ("low", 1)):
        cluster.api.patch(ELASTICJOBS, "j", {"metadata": {"labels": {PRIORITY_LABEL: name}}})
        await cluster.settle(5.0)
        (held,) = map(Workload, cluster.api.kueue.workloads.values())
        assert held.priority["priority"] == value


async def test_a_drain_does_not_wait_for_a_pod_that_the_queue_never_grants() -> None:
    cluster = await Cluster().submit(4).settle()
    node = cluster.pods[1]["spec"]["nodeName"]
    cluster.api.patch(NODES, node, {"spec": {"unschedulable": True}})
    await cluster.settle(30.0)
    (budget,) = cluster.api.list(PODDISRUPTIONBUDGETS)
    assert budget["spec"]["minAvailable"] == 2, "what the job goes on with, and not held"
    assert not cluster.status.get("migrations")


async def test_a_pod_that_moves_does_not_take_the_grant_of_another_slot() -> None:
    """The slot's own Pod waits after three quick ends; neither the source nor its target could train alone."""
    cluster = Cluster().submit(2, 2)
    cluster.api.set_quota(2)
    await cluster.settle()
    plan(cluster.api, "move", migratePods=[{"name": "j-worker-0"}])
    await cluster.settle()
    end = {"exitCode": 137, "reason": "OOMKilled"}
    cluster.script = Script(pod_failures={(1, incarnation): end for incarnation in (1, 2, 3)})
    await cluster.settle(600.0)
    world = cluster.status["rendezvous"]
    assert (world["phase"], world["members"]) == ("Formed", "0-1")
    cluster.api.set_quota(3)
    cluster.api.patch(ELASTICJOBS, "j", {"spec": {"replicaSpecs": {names.WORKER: {"replicas": 3}}}})
    await cluster.settle(600.0)
    assert cluster.status["rendezvous"]["worldSize"] == 3
