"""Several things may be wrong with a job at once: none hides another, each has one Event, and goes when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.checkpoint_files import CheckpointTrouble
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.job_status import JobWarning
from crds.phases import JobPhase
from reconcilers.conditions.life import WORKERS_READY
from reconcilers.failure.refusal import PODS_NOT_ACCEPTED, PodRefusal
from reconcilers.job.plan import waits_of_all
from reconcilers.look import DesiredJob
from reconcilers.observed.start import STARTED
from reconcilers.observed.worker_state import AGENT_HEARD, HARDWARE_WELL, SCHEDULED, SIDECARS_WELL
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.judging import conditions, judge, seen_of, warnings


def condition(type_: str, reason: str) -> dict[str, Any]:
    return {"type": type_, "status": "False", "reason": reason, "message": "why", "lastTransitionTime": NOW}


def trains(
    index: int, round_: int, *states: dict[str, Any], nan_at: int | None = None, **reported: Any
) -> ElasticWorker:
    told = {"round": round_, "firstStep": 1, "lastStep": 9, "nonFiniteStep": nan_at}
    said = report(index, AgentState.RUNNING, round_, rounds=[told], **reported)
    return worker(index, agent=said.to_wire(), conditions=list(states))


def waits(index: int, type_: str, reason: str) -> ElasticWorker:
    return worker(index, WorkerPhase.PENDING, conditions=[condition(type_, reason)])


FULL = {"reason": CheckpointTrouble.STORAGE, "message": "step 5: full"}
TROUBLES: dict[str, Any] = {
    "WorkersUnscheduled": lambda _: waits(0, SCHEDULED, "Unschedulable"),
    "WorkersNotStarted": lambda _: waits(1, STARTED, "ImagePullBackOff"),
    "AgentsSilent": lambda round_: trains(2, round_, condition(AGENT_HEARD, "NoHeartbeat")),
    "SidecarsFailed": lambda round_: trains(3, round_, condition(SIDECARS_WELL, "SidecarFailed")),
    "CheckpointsFailing": lambda round_: trains(4, round_, checkpoint_trouble=FULL),
    "NonFiniteLoss": lambda round_: trains(5, round_, nan_at=3),
    "WorkersGivenUp": lambda _: worker(6, WorkerPhase.FAILED),
    PODS_NOT_ACCEPTED: lambda round_: trains(7, round_),
    "TemplateChanged": lambda round_: trains(8, round_),
    "ProcessLingers": lambda round_: trains(
        9, round_, lingers="rank 9: the script has ended: a thread keeps it"
    ),
    "NodesReportedFaulty": lambda round_: trains(10, round_, condition(HARDWARE_WELL, "NodeFault")),
}
"""By type of warning, the worker of the job that has it."""
EVENTS = {
    "WorkersUnscheduled": "Unschedulable",
    "WorkersNotStarted": "ImagePullBackOff",
    PODS_NOT_ACCEPTED: "PodInvalid",
}
REFUSED = JobWarning(type=PODS_NOT_ACCEPTED, reason="PodInvalid", message="no such field", since=NOW)
HINDER = ("WorkersUnscheduled", "WorkersNotStarted", PODS_NOT_ACCEPTED)


def crew(troubles: Sequence[str], round_: int) -> list[ElasticWorker]:
    return [
        made(round_) if type_ in troubles else trains(index, round_)
        for index, (type_, made) in enumerate(TROUBLES.items())
    ]


def look(of: Any, troubles: Sequence[str], seconds: float, round_: int = 1) -> tuple[Any, list[str]]:
    after, events = judge(
        of,
        workers=crew(troubles, round_),
        phase=JobPhase.RUNNING,
        now=later(seconds),
        exhausted_workers={"w6": "failed 4 times"} if "WorkersGivenUp" in troubles else {},
        refusal=PodRefusal(REFUSED, "", has_begun=True) if PODS_NOT_ACCEPTED in troubles else None,
        outdated_pods="TemplateChanged" in troubles,
        pods=dict.fromkeys(TROUBLES),
    )
    return after, [event.reason for event in events]


@given(st.sets(st.sampled_from(sorted(TROUBLES))), st.sets(st.sampled_from(sorted(TROUBLES))))
def test_what_is_wrong_at_once_is_all_in_the_list_once_and_nothing_else_is(
    first: set[str], second: set[str]
) -> None:
    fresh = job(replicas=len(TROUBLES))
    one, began = look(fresh, sorted(first), 0)
    assert [each.type for each in one.status.warnings] == list(warnings(one)) and warnings(
        one
    ).keys() == first
    assert sorted(began) == sorted(EVENTS.get(type_, type_) for type_ in first)
    same, again = look(one, sorted(first), 5)
    assert same == one and not again, "once"
    two, later_on = look(one, sorted(second), 9, round_=2)
    assert warnings(two).keys() == second
    assert {EVENTS.get(type_, type_) for type_ in second - first} <= set(later_on)
    over = {"AgentsHeard", "CheckpointsSaved"} & set(later_on)
    assert over == {
        reason
        for type_, reason in (("AgentsSilent", "AgentsHeard"), ("CheckpointsFailing", "CheckpointsSaved"))
        if type_ in first - second
    }
    for type_ in second:
        assert warnings(two)[type_].since == (
            NOW if type_ in first or type_ == PODS_NOT_ACCEPTED else later(9)
        )


def test_a_lingering_process_has_both_limits_in_its_warning() -> None:
    found, _ = look(job(replicas=len(TROUBLES)), ["ProcessLingers"], 0)
    message = warnings(found)["ProcessLingers"].message
    assert "ended 1800 s after its script, 10 s after one that failed" in message


@given(st.sets(st.sampled_from(sorted(TROUBLES))))
def test_workers_are_ready_if_all_run_and_the_condition_names_each_hindrance(troubles: set[str]) -> None:
    found, _ = look(job(replicas=len(TROUBLES)), sorted(troubles), 0)
    ready = conditions(found)[WORKERS_READY]
    assert (ready.status == "True") == (not troubles & {*HINDER, "WorkersGivenUp"})
    for type_ in troubles & {*HINDER}:
        assert type_ in ready.message


@pytest.mark.parametrize(
    ("exit_class", "quick_exits", "phase", "warned"),
    [
        (ExitClass.PREEMPTED, 3, WorkerPhase.FAILED, True),
        (ExitClass.KILLED, 5, WorkerPhase.PENDING, True),
        (ExitClass.PREEMPTED, 2, WorkerPhase.FAILED, False),
        (ExitClass.PREEMPTED, 3, WorkerPhase.RUNNING, False),
        (ExitClass.USER_ERROR, 3, WorkerPhase.FAILED, False),
    ],
)
def test_pods_that_end_at_once_and_spend_no_budget_are_reported_with_the_reason(
    exit_class: ExitClass, quick_exits: int, phase: WorkerPhase, warned: bool
) -> None:
    end = {"incarnation": 1, "exitClass": exit_class, "reason": "OutOfcpu", "message": "no room", "time": NOW}
    ending = worker(0, phase, quickExits=quick_exits, lastExit=end)
    found, _ = judge(job(replicas=1), "WorkersNotStarted", workers=[ending])
    assert [(each.reason, "no room" in each.message) for each in found.status.warnings] == (
        [("EndsAtOnce", True)] if warned else []
    )


def test_a_pod_that_runs_again_for_less_than_a_minute_leaves_the_warning_as_it_is() -> None:
    def ending(phase: WorkerPhase, ended: float) -> ElasticWorker:
        end = {"incarnation": 1, "exitClass": "Killed", "message": "evicted", "time": later(ended)}
        life = {"incarnation": 2, "createdAt": later(ended), "runningAt": later(ended + 10)}
        return worker(0, phase, quickExits=3, lastExit=end, history=[life])

    of, told = job(replicas=1), []
    for seconds, phase in ((0, WorkerPhase.FAILED), (15, WorkerPhase.RUNNING), (30, WorkerPhase.FAILED)):
        of, events = judge(of, workers=[ending(phase, 0)], phase=JobPhase.RUNNING, now=later(seconds))
        told += [event.reason for event in events if event.type == "Warning"]
        assert [(each.reason, each.since) for each in of.status.warnings] == [("EndsAtOnce", NOW)]
        assert conditions(of)[WORKERS_READY].status == "False"
    assert told == ["EndsAtOnce"]
    again = [ending(WorkerPhase.RUNNING, 30)]
    seen = seen_of(of, again)
    assert 55.0 in waits_of_all(DesiredJob(seen, of, seen.workers, later(45)))
    over, _ = judge(of, workers=again, phase=JobPhase.RUNNING, now=later(100))
    assert not over.status.warnings and conditions(over)[WORKERS_READY].status == "True"


def test_workers_that_are_yet_to_start_are_not_ready_and_are_counted() -> None:
    of = job(replicas=3)
    found, events = judge(of, workers=[worker(0), worker(1, WorkerPhase.PENDING)])
    ready = conditions(found)[WORKERS_READY]
    assert (ready.status, ready.reason, ready.message) == ("False", "Starting", "2 workers not running yet")
    assert not found.status.warnings and not events
    done, _ = judge(of, workers=[worker(index) for index in range(3)], phase=JobPhase.RUNNING)
    assert conditions(done)[WORKERS_READY].status == "True"
