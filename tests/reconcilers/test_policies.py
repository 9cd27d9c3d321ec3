from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticworker import ExitClass, WorkerPhase
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.memory import MemoryRoom
from reconcilers.failure.renewals import Renewal
from reconcilers.job import status as job_status
from reconcilers.job.workers import (
    LOST_NODE_SECONDS,
    MAX_DELAY_SECONDS,
    MAX_LOST_NODES,
    created,
    delay_seconds,
    nodes_just_lost,
    plan_relaunches,
    relaunched,
)
from reconcilers.observed.ending import NODE_DELETED
from reconcilers.observed.run_policy import seconds_to_cleaning
from reconcilers.observed.status_patch import merge_patch
from reconcilers.observed.workers import Workers
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, later, worker

FORMED = RendezvousPhase.FORMED


# --- relaunching ------------------------------------------------------------------------------------


def ended(index: int = 0, exit_class: str = "UserError", **status: Any) -> Any:
    last = {"incarnation": 1, "exitClass": exit_class, "time": NOW, "nodeName": "node-0"}
    return worker(index, WorkerPhase.FAILED, lastExit=last, **status)


def test_crash_loop_waits_ever_longer() -> None:
    plan = plan_relaunches([ended(quickExits=3)], Rendezvous(), later(0.5))
    assert not plan.relaunches and plan.look_again_seconds == 1.5
    assert plan_relaunches([ended(quickExits=3)], Rendezvous(), later(2)).relaunches


@given(st.integers(0, 2_000))
def test_delay_never_shrinks_and_is_bounded(quick_exits: int) -> None:
    assert 0 <= delay_seconds(quick_exits) <= delay_seconds(quick_exits + 1) <= MAX_DELAY_SECONDS


def test_node_that_is_lost_or_refuses_pods_is_avoided_and_a_users_error_is_not_its_fault() -> None:
    lost, refused, wrong = ended(0, "NodeLost"), ended(1, "Preempted"), ended(2, "UserError")
    plan = plan_relaunches([lost, refused, wrong], Rendezvous(), NOW)
    assert [r.excluded_nodes for r in plan.relaunches] == [("node-0",), ("node-0",), ()]


def lost_with(node: str, index: int = 0, reason: str = "Unreachable", **status: Any) -> Any:
    end = ended(index, "NodeLost").status.last_exit.to_wire() | {"nodeName": node, "reason": reason}
    return worker(index, lastExit=end, **status)


def test_all_new_pods_avoid_a_node_that_kubernetes_does_not_call_lost_yet() -> None:
    workers = [lost_with("node-1"), lost_with("node-0", 1, "HeartbeatLost"), worker(2)]
    assert nodes_just_lost(workers, later(20)) == ["node-1", "node-0"]
    assert not nodes_just_lost(workers, later(LOST_NODE_SECONDS))
    known = [lost_with("node-0", reason=reason) for reason in (NODE_DELETED, "NodeLost", "Unknown")]
    assert not nodes_just_lost([*known, ended(1)], later(1))
    rack = [lost_with(f"node-{number}", number) for number in range(2 * MAX_LOST_NODES)]
    assert len(nodes_just_lost(rack, NOW)) == MAX_LOST_NODES


def test_lost_nodes_are_those_of_one_incarnation() -> None:
    (relaunch,) = plan_relaunches([ended()], Rendezvous(), NOW).relaunches
    room = MemoryRoom(job(), [], [])
    for lost_nodes in (["node-1"], []):
        spec = relaunched(relaunch, room, lost_nodes=lost_nodes).body["spec"]
        assert (spec["lostNodes"], spec["excludedNodes"]) == (lost_nodes, [])
    (act,) = created(job(), [("worker", 3)], ["node-1"])
    assert act.body["spec"]["lostNodes"] == ["node-1"]


def test_a_machine_that_comes_back_by_the_name_of_a_deleted_node_is_not_avoided() -> None:
    last = ended(0, "NodeLost").status.last_exit.to_wire()
    gone = worker(0, WorkerPhase.FAILED, lastExit=last | {"reason": NODE_DELETED})
    avoiding = gone.spec.model_copy(update={"excluded_nodes": ["node-0", "node-1"]})
    gone = gone.model_copy(update={"spec": avoiding})
    assert plan_relaunches([gone], Rendezvous(), NOW).relaunches[0].excluded_nodes == ("node-1",)


def test_a_node_on_which_a_rule_replaced_the_pod_is_avoided() -> None:
    by_rule = worker(
        0, WorkerPhase.FAILED, lastExit=ended().status.last_exit.to_wire() | {"action": "Replace"}
    )
    assert plan_relaunches([by_rule], Rendezvous(), NOW).relaunches[0].excluded_nodes == ("node-0",)
    renewed = plan_relaunches([worker(0)], Rendezvous(), NOW, renewed={"w0": "why"}, avoiding={"w0"})
    assert renewed.relaunches[0].excluded_nodes == ("node-0",)


def test_what_a_living_pod_is_replaced_for_is_written_down_and_forgotten_with_the_next() -> None:
    """The worker's own reconciler reads it: a hardware error accuses the node only if the Pod went for it."""
    of = job(replicas=2)
    room = MemoryRoom(of, [worker(0)], [])
    (relaunch,) = plan_relaunches([worker(0)], Rendezvous(), NOW, renewed={"w0": "why"}).relaunches
    renewals = (Renewal(ExitClass.HARDWARE_ERROR, "why", avoids_node=True), None)
    written = [relaunched(relaunch, room, renewal).body["spec"]["replacedFor"] for renewal in renewals]
    assert written == ["HardwareError", None]


def test_finished_worker_is_needed_again_when_the_world_breaks_without_it() -> None:
    done = worker(0, WorkerPhase.SUCCEEDED)
    assert not plan_relaunches([done], Rendezvous(round=1, phase=FORMED), NOW).relaunches
    broken = Rendezvous(round=1, phase=RendezvousPhase.REFORMING)
    assert plan_relaunches([done], broken, NOW).relaunches


# --- the set of workers -----------------------------------------------------------------------------


# --- phase and conditions ---------------------------------------------------------------------------


def test_job_of_plain_pods_runs_when_all_do_and_succeeds_when_all_have() -> None:
    two = job(replicas=2)
    assert job_status.phase_of(two, Workers([worker(0), worker(1)]), Rendezvous()) is JobPhase.RUNNING
    done = [worker(i, WorkerPhase.SUCCEEDED) for i in (0, 1)]
    assert job_status.has_succeeded(Workers(done), Rendezvous())
    assert not job_status.has_succeeded(Workers([done[0], worker(1)]), Rendezvous())
    assert not job_status.has_succeeded(Workers([]), Rendezvous())


def test_a_waiting_newcomer_does_not_keep_a_finished_world_from_succeeding() -> None:
    world = Rendezvous(round=1, phase=FORMED, members=[0], incarnations=[1])
    assert job_status.has_succeeded(Workers([worker(0, WorkerPhase.SUCCEEDED), worker(1)]), world)


# --- run policy -------------------------------------------------------------------------------------


def finished_job(**policy: Any) -> Any:
    return job(runPolicy=policy, status={"phase": "Succeeded", "completionTime": NOW, "startTime": NOW})


@pytest.mark.parametrize(
    ("policy", "pod_ended", "at", "expected"),
    [
        ("None", False, 99, None),
        ("Running", True, 99, None),
        ("Running", False, 0, 35),
        ("Running", False, 40, 0),
        ("All", True, 0, 0),
    ],
)
def test_clean_pod_policy(policy: str, pod_ended: bool, at: float, expected: float | None) -> None:
    wait = seconds_to_cleaning(
        finished_job(cleanPodPolicy=policy), "worker", pod_ended=pod_ended, now=later(at), has_agent=True
    )
    assert wait == expected


# --- small mechanisms -------------------------------------------------------------------------------

JSON = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(OBJECTS, OBJECTS)
def test_merge_patch_leads_from_one_status_to_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merged(before, merge_patch(before, after)) == after
    assert merge_patch(after, after) == {}
