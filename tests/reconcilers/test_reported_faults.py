"""Faults that others report of a node's hardware: who reports what, and that a worker leaves before the crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.look import ObservedJob
from reconcilers.observed.exit_class import classify_pod
from reconcilers.observed.hardware import reports_fault
from reconcilers.observed.worker_state import HARDWARE_WELL
from reconcilers.observed.workers import Workers
from reconcilers.shapes import kept_of_pod
from reconcilers.worker.worker_status import observe
from reconcilers.world.reported_faults import with_reported
from reconcilers.world.vetting import UNJUDGED
from tests.reconcilers.build import NOW, bounds, check_worker, job, later, pod, worker
from tests.reconcilers.judging import after
from tests.reconcilers.observing import observation
from tests.reconcilers.test_job_plan import seen, trains

WATCH = {
    "type": "GpuMemWatch",
    "status": "True",
    "reason": "GpuMemWatchIsNotHealthy",
    "message": "ErrorCode:DCGM_FR_FAULTY_MEMORY GPU:3 Recommended Action=COMPONENT_RESET;",
}
FAULTY = {"metadata": {"name": "node-0"}, "status": {"conditions": [WATCH]}}
WELL = {"metadata": {"name": "node-0"}, "status": {"conditions": []}}


def with_devices(*devices: tuple[str, str]) -> dict[str, Any]:
    """A Pod that runs, with GPUs by id and health."""
    resources = [{"resourceID": name, "health": health} for name, health in devices]
    status = {
        "name": "main",
        "state": {"running": {}},
        "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}],
    }
    return pod(containerStatuses=[status])


def hardware_of(status: Any) -> tuple[str, str] | None:
    found = [c for c in status.conditions if c.type == HARDWARE_WELL]
    return (found[0].reason, found[0].message) if found else None


# --- what is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("devices", "node", "expected"),
    [
        ([("GPU-1", "Healthy"), ("GPU-2", "Unknown")], WELL, None),
        (
            [("GPU-1", "Healthy"), ("GPU-2", "Unhealthy"), ("GPU-3", "Unhealthy")],
            FAULTY,
            (
                "DeviceUnhealthy",
                "the kubelet of node-0 reports device GPU-2 of nvidia.com/gpu as Unhealthy; and 1 more device",
            ),
        ),
        (
            [],
            FAULTY,
            (
                "NodeFault",
                f"node node-0: its condition GpuMemWatch is True by NVSentinel: {WATCH['message']}",
            ),
        ),
    ],
)
def test_a_workers_status_says_which_device_and_whose_word_it_is(
    devices: Sequence[tuple[str, str]], node: dict[str, Any], expected: tuple[str, str] | None, kept: bool
) -> None:
    raw = with_devices(*devices)
    read = kept_of_pod(raw | {"metadata": raw["metadata"] | {"name": "p"}}) if kept else raw
    assert hardware_of(observe(worker(), observation(read, node=node), NOW)) == expected


def test_the_word_is_withdrawn_with_the_fault_and_never_taken_of_the_pods_of_a_check() -> None:
    status = observe(worker(), observation(with_devices(), node=FAULTY), NOW)
    assert hardware_of(status) is not None
    again = worker().model_copy(update={"status": status})
    assert hardware_of(observe(again, observation(with_devices(), node=WELL), later(1))) is None
    assert hardware_of(observe(check_worker(), observation(with_devices(), node=FAULTY), NOW)) is None


def test_the_end_by_a_device_taint_says_so() -> None:
    """As the real controller-manager of 1.37.2 wrote it."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByDeviceTaintManager",
        "message": "Device Taint manager: deleting due to NoExecute taint",
    }
    end = classify_pod(pod(phase="Failed", deleted=True, conditions=[condition]))
    assert (end.exit_class, end.reason) == (ExitClass.PREEMPTED, "DeletionByDeviceTaintManager")
    assert "DeviceTaintRule" in end.message and "kubectl get devicetaintrules,resourceslices" in end.message


@pytest.mark.parametrize(
    ("allocatable", "expected"), [("8", False), ("7", True), ("0", True)], ids=["all", "one", "none"]
)
def test_a_kubelet_that_keeps_a_device_from_new_pods_reports_a_fault(
    allocatable: str, expected: bool
) -> None:
    status = {
        "capacity": {"nvidia.com/gpu": "8", "cpu": "8"},
        "allocatable": {"nvidia.com/gpu": allocatable, "cpu": "7"},
    }
    assert reports_fault({"status": status}) is expected


# --- who leaves -------------------------------------------------------------------------------------------


def ailing(index: int, incarnation: int = 1, **status: Any) -> ElasticWorker:
    """A worker that trains on a node of which a fault is reported."""
    condition = {"type": HARDWARE_WELL, "status": "False", "reason": "NodeFault", "lastTransitionTime": NOW}
    ours = condition | {"message": f"node n{index}: its condition GpuMemWatch is True by NVSentinel"}
    return trains(index, nodeName=f"n{index}", conditions=[ours], **status)


def elastic(members: int, minimum: int, bad: Sequence[int], **more: Any) -> ObservedJob:
    crew = [ailing(i) if i in bad else trains(i, nodeName=f"n{i}") for i in range(members)]
    found = seen(crew, **more)
    rendezvous = found.job.status.to_wire()["rendezvous"]
    of = job(
        replicas=members,
        worker={"minReplicas": minimum},
        status={"phase": "Running", "rendezvous": rendezvous},
    )
    return seen(crew, of, **more)


def relaunches(plan: JobPlan) -> list[tuple[str, list[str], str]]:
    """Who gets another Pod, off which nodes, and the Event."""
    return [
        (act.name or "", act.body["spec"]["reportedNodes"], act.events[0].message)
        for act in plan.acts
        if act.body and "reportedNodes" in act.body.get("spec", {})
    ]


def test_a_worker_leaves_the_world_by_vote_first_and_gets_its_pod_elsewhere_then() -> None:
    found = elastic(4, 2, bad=[2])
    plan = plan_job(found, later(1))
    assert relaunches(plan) == [], "its process takes part in the vote"
    (warning,) = plan.status_patch["warnings"]
    assert (warning["type"], warning["reason"], warning["data"]["node"]) == (
        "NodesReportedFaulty",
        "Leaving",
        "n2",
    )
    assert "GpuMemWatch is True by NVSentinel" in warning["message"]
    gone_on = after(found.job, plan)
    assert gone_on.status.world.members == [0, 1, 3]
    (relaunch,) = relaunches(plan_job(seen(found.workers, gone_on), later(2)))
    assert relaunch[:2] == ("digits-worker-2", ["n2"]) and "by NVSentinel" in relaunch[2]


def test_a_world_that_may_not_be_smaller_waits_for_the_pod_elsewhere() -> None:
    plan = plan_job(elastic(4, 4, bad=[2]), later(1))
    assert [each[:2] for each in relaunches(plan)] == [("digits-worker-2", ["n2"])]
    assert plan.status_patch["rendezvous"]["phase"] == "Reforming"


def test_nobody_moves_where_most_nodes_are_reported_at_once() -> None:
    plan = plan_job(elastic(4, 1, bad=[0, 1, 3]), later(1))
    assert relaunches(plan) == []
    (warning,) = plan.status_patch["warnings"]
    assert (warning["reason"], warning["data"]["count"]) == ("Doubted", 3)


def test_the_end_of_the_pod_that_left_keeps_whose_word_it_was() -> None:
    old = ailing(2)
    moved = old.model_copy(
        update={"spec": old.spec.model_copy(update={"incarnation": 2, "reported_nodes": ["n2"]})}
    )
    end = observe(moved, observation(None), later(1)).last_exit
    assert end is not None and (end.exit_class, end.reason) == (ExitClass.CHECK_FAILED, "NodeFault")
    assert end.message.endswith("node n2: its condition GpuMemWatch is True by NVSentinel")


@pytest.mark.parametrize(("node", "made_again"), [(FAULTY, False), (WELL, True)])
def test_a_pod_that_finds_no_node_may_go_back_when_nothing_is_reported_of_it_any_more(
    node: dict[str, Any], made_again: bool
) -> None:
    unscheduled = {
        "type": "Scheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": NOW,
    }
    waits = worker(1, WorkerPhase.PENDING, incarnation=2, nodeName=None, conditions=[unscheduled])
    waits = waits.model_copy(update={"spec": waits.spec.model_copy(update={"reported_nodes": ["node-0"]})})
    plan = plan_job(replace(seen([trains(0), waits]), nodes=[node]), later(5))
    assert [each[1] for each in relaunches(plan)] == ([[]] if made_again else [])


@given(
    members=st.integers(1, 12),
    minimum=st.integers(1, 12),
    bad=st.sets(st.integers(0, 15)),
    standing_by=st.integers(0, 3),
)
def test_at_most_half_of_the_workers_move_and_none_leaves_a_world_that_needs_it(
    members: int, minimum: int, bad: set[int], standing_by: int
) -> None:
    minimum = min(minimum, members)
    crew = Workers(ailing(i) if i in bad else trains(i) for i in range(members + standing_by))
    world = Rendezvous(round=1, phase="Formed", members=list(range(members)), world_size=members)
    limits = bounds(members, minimum)
    standing = with_reported(UNJUDGED, crew, world, limits, ())
    moving = standing.faulty.keys() | standing.leaving.keys()
    reported = bad & set(range(members + standing_by))
    assert moving == (reported if len(reported) <= max(1, len(crew) // 2) else set())
    assert standing.faulty.keys().isdisjoint(standing.leaving)
    if standing.leaving:
        assert set(standing.leaving) == moving & set(range(members))
        assert len(crew) - len(reported) >= minimum
