from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from crds.agent_report import AgentState
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.failure_policy import FailureAction, FailureRule
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.silence import Silence, SilenceVerdict
from reconcilers.observed.worker_state import HEARTBEAT_ON_TIME, current_report, finished, stuck_by
from reconcilers.worker.worker_status import observe
from tests.reconcilers.build import NOW, failure, later, pod, report, terminated, worker
from tests.reconcilers.observing import observation


def after(seen_worker: ElasticWorker, **seen: Any) -> Any:
    return observe(seen_worker, observation(**seen), NOW)


def test_what_the_node_shares_with_others_is_in_the_status_where_it_is_asked_for() -> None:
    node = {"metadata": {"name": "node-0", "labels": {"rack": "r7"}}}
    status = after(worker(phase=None), pod=pod(), node=node, topology_keys=["rack", "switch"])
    assert status.topology == ["r7", ""]
    assert after(worker(phase=None), pod=pod(), node=node).topology is None
    assert after(worker(phase=None), pod=pod(), topology_keys=["rack"]).topology is None


def test_an_end_is_of_the_machine_that_the_pod_was_first_seen_on() -> None:
    """Another machine may have the node's name by then."""
    runs = after(worker(phase=None), pod=pod(), node={"metadata": {"name": "node-0", "uid": "m1"}})
    assert runs.node_uid == "m1"
    later_on = {"pod": pod(phase="Failed"), "node": {"metadata": {"name": "node-0", "uid": "m2"}}}
    ended = after(worker().model_copy(update={"status": runs}), **later_on)
    assert (ended.last_exit.node_name, ended.last_exit.node_uid) == ("node-0", "m1")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "bash: line 1: dlrover-run: command not found\n",
            "exit code 127: bash: line 1: dlrover-run: command not found",
        ),
        (
            "no such file: x\n\n 40%|####      | 4/10 [00:01<00:02,  2.5it/s]\n",
            "exit code 127: no such file: x",
        ),
        ("", "exit code 127"),
    ],
)
def test_what_ends_beside_an_agent_says_why_in_its_last_line(log: str, said: str) -> None:
    ended = terminated(127)
    ended["state"]["terminated"]["message"] = log
    status = after(worker(), pod=pod(phase="Failed", containerStatuses=[ended]))
    end = status.last_exit
    assert (end.exit_class, end.message, end.log_tail) == (ExitClass.USER_ERROR, said, log)
    assert status.message == said


def test_the_log_of_what_was_killed_does_not_say_why() -> None:
    ended = terminated(137)
    ended["state"]["terminated"]["message"] = "step 7 loss 0.3"
    end = after(worker(), pod=pod(phase="Failed", containerStatuses=[ended])).last_exit
    assert (end.message, end.log_tail) == ("exit code 137 (SIGKILL)", "step 7 loss 0.3")


def told(
    state: AgentState = AgentState.FAILED, observed_round: int = 1, **failure_fields: Any
) -> ElasticWorker:
    """Of an agent whose training process failed in round 1."""
    spoken = report(0, state, observed_round, failure=failure(0, log_tail="epoch 3", **failure_fields))
    return worker(agent=spoken.to_wire())


def test_end_of_a_pod_keeps_the_training_processes_own_words() -> None:
    end = after(told(), pod=pod(phase="Failed", containerStatuses=[terminated(1)])).last_exit
    assert (end.rank, end.message, end.log_tail) == (0, "ValueError: bad", "epoch 3")


def test_an_earlier_rounds_failure_is_not_why_the_pod_ended() -> None:
    end = after(
        told(AgentState.RUNNING, 2), pod=pod(phase="Failed", containerStatuses=[terminated(1)])
    ).last_exit
    assert (end.rank, end.message) == (None, "exit code 1")


def test_pod_that_was_taken_away_says_so_whatever_its_processes_said() -> None:
    end = after(told(), pod=pod(deleted=True)).last_exit
    assert (end.exit_class, end.message) == (ExitClass.KILLED, "the Pod was deleted")


COLLECTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: …"}
NODE_0 = {"metadata": {"name": "node-0", "uid": "m1"}}
NEW_NODE_0 = {"metadata": {"name": "node-0", "uid": "m2"}}


@pytest.mark.parametrize(
    "ended",
    [
        None,
        pod(deleted=True),
        pod(phase="Failed", deleted=True, containerStatuses=[terminated(137)]),
        pod(phase="Failed", conditions=[COLLECTED]),
        pod(phase="Failed", deleted=True, conditions=[COLLECTED]),
    ],
)
@pytest.mark.parametrize("node", [None, NEW_NODE_0])
def test_a_pod_that_goes_with_its_deleted_node_was_lost_with_it(ended: Any, node: Any) -> None:
    runs = after(worker(phase=None), pod=pod(), node=NODE_0)
    end = after(worker().model_copy(update={"status": runs}), pod=ended, node=node).last_exit
    assert (end.exit_class, end.message) == (ExitClass.NODE_LOST, "its node node-0 was deleted")
    stays = after(worker().model_copy(update={"status": runs}), pod=pod(deleted=True), node=NODE_0)
    assert stays.last_exit.exit_class is ExitClass.KILLED


def test_a_node_that_was_never_seen_is_gone_only_by_the_word_of_the_garbage_collector() -> None:
    collected = pod(phase="Failed", conditions=[COLLECTED])
    assert after(worker(), pod=collected).last_exit.message == "its node node-0 was deleted"
    assert after(worker(), pod=collected, node=NODE_0).last_exit.message == "PodGC: …"
    assert after(worker(), pod=pod(deleted=True)).last_exit.message == "the Pod was deleted"


def test_an_end_of_its_own_is_the_workers_whatever_became_of_the_node() -> None:
    runs = after(worker(phase=None), pod=pod(), node=NODE_0)
    left = pod(phase="Failed", containerStatuses=[terminated(1)])
    end = after(worker().model_copy(update={"status": runs}), pod=left).last_exit
    assert end.exit_class is ExitClass.USER_ERROR


def test_pod_that_is_deleted_with_time_to_stop_ends_in_good_order() -> None:
    assert after(worker(), pod=pod(deleted=True)).last_exit.in_good_order
    by_force = pod(deleted=True)
    by_force["metadata"]["deletionGracePeriodSeconds"] = 0
    by_taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    for ended in (
        pod(phase="Failed", deleted=True),
        pod(deleted=True, containerStatuses=[terminated(137)]),
        pod(deleted=True, conditions=[by_taint]),
        by_force,
    ):
        assert after(worker(), pod=ended).last_exit.in_good_order is None
    assert after(worker(podUid="uid-0-1"), pod=None).last_exit.in_good_order is None, "it is gone already"


def test_a_planned_end_is_a_restart_and_no_failure() -> None:
    drained = after(worker(), pod=pod(deleted=True))
    assert (drained.restarts, drained.failures) == ({"Killed": 1}, {})
    assert drained.last_exit.planned and drained.history[-1].planned
    waits = worker(phase=WorkerPhase.PENDING, podUid="uid-0-1")
    assert after(waits, pod=None).failures == {}, "it never ran"
    assert after(worker(podUid="uid-0-1"), pod=None).failures == {"Killed": 1}
    by_force = pod(deleted=True)
    by_force["metadata"]["deletionGracePeriodSeconds"] = 0
    assert after(worker(), pod=by_force).failures == {"Killed": 1}


def test_the_end_after_a_failure_that_the_job_has_counted_is_no_other_failure() -> None:
    ended = pod(phase="Failed", containerStatuses=[terminated(1)])
    assert after(told(), pod=ended).failures == {"UserError": 1}
    known = told().status.agent.failure.round
    assert after(told(), pod=ended, counted_round=known).failures == {}
    assert after(told(), pod=ended, counted_round=known + 1).failures == {"UserError": 1}


def test_the_end_of_a_pod_whose_processes_had_failed_in_an_earlier_round_is_another_failure() -> None:
    by_force = pod(deleted=True)
    by_force["metadata"]["deletionGracePeriodSeconds"] = 0
    assert after(told(AgentState.RUNNING, 2), pod=by_force, counted_round=1).failures == {"Killed": 1}
    assert after(told(AgentState.RUNNING, 2), pod=None, counted_round=1).failures == {"Killed": 1}


def test_a_node_that_restarted_is_named() -> None:
    lost = pod(phase="Failed", containerStatuses=[terminated(137, "ContainerStatusUnknown")])
    end = after(worker(), pod=lost).last_exit
    assert (end.exit_class, end.message) == (ExitClass.NODE_LOST, "node-0 restarted")


@pytest.mark.parametrize(
    ("seconds", "awaited", "shown"), [(12, True, True), (12, False, False), (4, True, False)]
)
def test_a_late_heartbeat_shows_only_where_the_job_may_wait_for_it(
    seconds: float, awaited: bool, shown: bool
) -> None:
    silence = Silence(seconds, SilenceVerdict.HEARD, missed_renewal=seconds > 5)
    of = worker(agent=report(0).to_wire())
    seen = after(of, pod=pod(), silence=silence, awaited=awaited, heartbeat_timeout_seconds=30.0)
    found = condition_of(seen.conditions, HEARTBEAT_ON_TIME)
    assert (found is not None) is shown
    if found is not None:
        assert found.last_transition_time == later(-seconds).replace(microsecond=0)
        assert found.message == "no heartbeat; the worker is lost at 30 s"


def test_rule_that_matches_is_written_with_the_end_and_ignore_spends_nothing() -> None:
    rule = FailureRule.model_validate({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}})
    ended = pod(phase="Failed", containerStatuses=[terminated(7)])
    status = after(worker(), pod=ended, failure_rules=[rule])
    assert (status.last_exit.action, status.restarts) == (FailureAction.IGNORE, {"UserError": 1})
    assert status.failure_budget.spent == {}
    assert after(worker(), pod=ended).failure_budget.spent == {"UserError": 1}


def next_life(seen: ElasticWorker, ended: dict[str, Any]) -> ElasticWorker:
    """The next incarnation runs, after this end of its Pod."""
    status = after(seen, pod=ended)
    incarnation = seen.spec.incarnation + 1
    alive = {"phase": WorkerPhase.RUNNING, "observed_incarnation": incarnation}
    spec = seen.spec.model_copy(update={"incarnation": incarnation})
    return seen.model_copy(update={"spec": spec, "status": status.model_copy(update=alive)})


def test_pods_that_get_further_each_time_spend_one_of_their_budget() -> None:
    seen = worker()
    for step in (10, 20, 20):
        progress, incarnation = {"step": step, "time": NOW}, seen.spec.incarnation
        spoken = report(0, AgentState.RUNNING, 1, incarnation=incarnation, progress=progress)
        seen = seen.model_copy(update={"status": seen.status.model_copy(update={"agent": spoken})})
        seen = next_life(seen, pod(phase="Failed", containerStatuses=[terminated(1)]))
    assert seen.status.restarts == {"UserError": 3}
    assert (seen.status.failure_budget.spent, seen.status.failure_budget.step) == ({"UserError": 2}, 20)


def test_pod_replaced_for_a_failure_in_place_ends_with_it() -> None:
    killed = told(cause="OOM", exit_code=-9)
    status = after(relaunched(killed, replaced_for=ExitClass.OOM), pod=None)
    end = status.last_exit
    assert (end.incarnation, end.exit_class, end.reason, end.node_name) == (
        1,
        ExitClass.OOM,
        "Replaced",
        "node-0",
    )
    assert (status.restarts, status.failure_budget) == ({"OOM": 1}, None), "the job's budget was charged"
    assert after(relaunched(killed), pod=None).last_exit is None, "resumed, say"


def test_agent_that_stops_before_its_replacement_is_seen_takes_no_word_back() -> None:
    faulty = told(AgentState.STOPPED, exit_code=201)
    end = after(relaunched(faulty, replaced_for=ExitClass.HARDWARE_ERROR), pod=None).last_exit
    assert (end.exit_class, end.node_name) == (ExitClass.HARDWARE_ERROR, "node-0")


@pytest.mark.parametrize("state", [AgentState.FAILED, AgentState.STOPPED])
def test_pod_replaced_for_another_reason_than_its_hardware_error_accuses_no_node(state: AgentState) -> None:
    """Suspended while its node is checked, and resumed before its Pod has gone: the check is to judge."""
    for avoids in ("node-9", "node-0"):  # an earlier life may have been told to avoid this very node
        resumed = relaunched(told(state, exit_code=201), avoids=[avoids])
        assert after(resumed, pod=None).last_exit is None


def test_hardware_error_told_a_round_late_accuses_the_node_of_the_pod_replaced_for_it() -> None:
    """Its agent had joined the next round when the driver told why a process had died in the one before."""
    late = told(AgentState.RUNNING, 2, cause="Device", message="Xid 79")
    end = after(relaunched(late, replaced_for=ExitClass.HARDWARE_ERROR), pod=None).last_exit
    assert (end.exit_class, end.node_name) == (ExitClass.HARDWARE_ERROR, "node-0")
    assert after(relaunched(late, avoids=["node-0"]), pod=None).last_exit is None, "resumed later, say"
    assert after(relaunched(late, replaced_for=ExitClass.OOM), pod=None).last_exit is None


def test_pod_deleted_from_a_node_that_goes_was_preempted() -> None:
    node = {"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}}
    assert after(worker(), pod=pod(deleted=True), node=node).last_exit.exit_class is ExitClass.PREEMPTED
    assert after(worker(), pod=None, node=node).last_exit.exit_class is ExitClass.PREEMPTED


def relaunched(
    old: ElasticWorker, *faulty: str, avoids: Sequence[str] = (), replaced_for: ExitClass | None = None
) -> ElasticWorker:
    """The next incarnation is wanted, off these nodes, and rather not on those."""
    raised = {
        "incarnation": old.spec.incarnation + 1,
        "faulty_nodes": list(faulty),
        "excluded_nodes": list(avoids),
        "replaced_for": replaced_for,
    }
    return old.model_copy(update={"spec": old.spec.model_copy(update=raised)})


def test_pod_taken_off_a_faulty_node_is_counted_once_with_the_first_look_at_the_next() -> None:
    moved = relaunched(worker(restarts={"Killed": 1}, restartCount=1, quickExits=2), "node-7", "node-0")
    status = after(moved, pod=None)
    assert (status.restarts, status.restart_count) == ({"Killed": 1, "CheckFailed": 1}, 2)
    assert (status.phase, status.observed_incarnation, status.quick_exits) == (WorkerPhase.PENDING, 2, 0)
    end = status.last_exit
    assert (end.exit_class, end.incarnation, end.node_name) == (ExitClass.CHECK_FAILED, 1, "node-0")
    assert end.message == "digits-worker-0-1 was taken off the node node-0, which a check found faulty"
    seen = moved.model_copy(update={"status": status})
    assert after(seen, pod=None) == status
    assert after(seen, pod=pod(incarnation=2)).restarts == status.restarts


def test_pod_that_had_ended_by_itself_is_not_counted_again_as_taken_off() -> None:
    ended = worker(phase=WorkerPhase.FAILED, restarts={"HardwareError": 1})
    assert after(relaunched(ended, "node-0"), pod=None).restarts == {"HardwareError": 1}


def test_relaunch_from_another_node_than_the_faulty_is_not_counted_as_a_failed_check() -> None:
    assert after(relaunched(worker(), "node-7"), pod=None).restarts == {}
    never_seen = worker(phase=None)
    assert after(relaunched(never_seen, "node-0"), pod=None).restarts == {}


def test_who_has_no_pod_in_a_suspended_job_waits_for_no_node() -> None:
    no_node = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    waits = after(worker(phase=None), pod=pod(phase="Pending", conditions=[no_node]))
    unscheduled = worker().model_copy(update={"status": waits})
    assert stuck_by(unscheduled) is not None
    suspended = after(unscheduled, pod=None, released=True)
    assert (suspended.message, suspended.conditions) == ("", [])


def test_quick_exits_count_only_pods_that_ended_by_themselves_soon() -> None:
    quick = pod(phase="Failed", startTime="2026-01-01T11:59:30Z", containerStatuses=[terminated(1)])
    assert after(worker(quickExits=1), pod=quick).quick_exits == 2
    slow = pod(phase="Failed", startTime="2026-01-01T11:00:00Z", containerStatuses=[terminated(1)])
    assert after(worker(quickExits=5), pod=slow).quick_exits == 0
    assert after(worker(quickExits=5), pod=pod(deleted=True)).quick_exits == 0


def agent(state: AgentState = AgentState.SUCCEEDED, **fields: Any) -> dict[str, Any]:
    return report(0, state, 3, **fields).to_wire()


def test_a_report_is_current_only_for_this_incarnation_and_pod() -> None:
    assert current_report(worker(agent=agent()))
    assert not current_report(worker(agent=agent(incarnation=2)))
    assert not current_report(worker(agent=agent(pod_uid="another")))
    assert not current_report(worker())


def test_worker_has_finished_when_its_pod_or_its_processes_of_this_round_ended_well() -> None:
    assert finished(worker(phase=WorkerPhase.SUCCEEDED), 3)
    assert finished(worker(agent=agent()), 3)
    assert not finished(worker(agent=agent()), 4)
    assert not finished(worker(agent=agent(AgentState.RUNNING)), 3)


# --- the job has ended ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pod_status", [{}, {"reason": "Evicted", "message": "The node was low on memory"}])
def test_a_pod_that_fails_after_its_job_has_ended_is_failed_and_counts_nothing(
    pod_status: dict[str, Any],
) -> None:
    before = worker(0)
    seen = observation(pod=pod(0, "Failed", **pod_status), released=True, ended=WorkerPhase.FAILED)
    status = observe(before, seen, NOW)
    assert status.phase is WorkerPhase.FAILED and status.message
    assert (status.last_exit, status.restarts, status.failure_budget) == (None, {}, None)
    assert status.history[-1].ended_at == NOW and status.history[-1].exit_class is None


@pytest.mark.parametrize("ended", [WorkerPhase.SUCCEEDED, WorkerPhase.FAILED])
@pytest.mark.parametrize("phase", [None, WorkerPhase.PENDING, WorkerPhase.RUNNING])
def test_who_has_no_pod_when_its_job_has_ended_ends_with_it(
    ended: WorkerPhase, phase: WorkerPhase | None
) -> None:
    seen = observation(pod=None, released=True, ended=ended)
    status = observe(worker(0, phase), seen, NOW)
    assert (status.phase, status.pod_uid) == (ended, None)
    again = observe(worker(0, phase).model_copy(update={"status": status}), seen, later(9))
    assert again == status


def test_what_runs_on_after_its_job_has_ended_is_running_until_its_pod_is_not() -> None:
    seen = observation(pod=pod(0), released=True, ended=WorkerPhase.FAILED)
    assert observe(worker(0), seen, NOW).phase is WorkerPhase.RUNNING
    leaves = observation(pod=pod(0, deleted=True), released=True, ended=WorkerPhase.SUCCEEDED)
    assert observe(worker(0), leaves, NOW).phase is WorkerPhase.RUNNING
    lost = observation(pod=pod(0), node_lost="node-0 is not ready", released=True, ended=WorkerPhase.FAILED)
    assert observe(worker(0), lost, NOW).phase is WorkerPhase.FAILED
