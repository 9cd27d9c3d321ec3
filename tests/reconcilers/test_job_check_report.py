from __future__ import annotations

from typing import Any

from crds.elasticjob import ElasticJob
from crds.model import ConditionStatus
from crds.nodecheck import NodeCheck
from crds.phases import JobPhase
from reconcilers.nodecheck.condition import NODES_CHECKED, event, finding_of
from reconcilers.observed.conditions import ConditionState, stated
from tests.reconcilers.build import NOW, job, later
from tests.reconcilers.job_stage import all_checks, at, checked_job, job_check
from tests.reconcilers.judging import conditions, judge

WORKERS = [at(0, "a"), at(1, "b"), at(2, "c")]
GOING_ON = job_check(2, "Running", workers=[0, 1])


def told(*checks: NodeCheck, of: ElasticJob | None = None, **state: Any) -> ConditionState:
    found = finding_of(of or checked_job(), all_checks(*checks).finished, **state)
    assert found is not None
    return found


def with_condition(reason: str) -> ElasticJob:
    condition = {"type": "NodesChecked", "status": "Unknown", "reason": reason, "lastTransitionTime": NOW}
    return job(status={"conditions": [condition]})


def test_a_check_that_goes_on_is_named_with_whom_it_tests() -> None:
    found = told(job_check(1), GOING_ON, active=GOING_ON)
    assert (found.status, found.reason) == ("Unknown", "Checking")
    assert found.message == "node check digits-check-2 tests workers 0, 1"


def test_the_newest_outcome_is_told_the_worst_first_and_what_follows() -> None:
    passed = told(job_check(1, of=WORKERS))
    assert (passed.status, passed.reason) == ("True", "AllHealthy")
    faulty = told(
        job_check(1, of=WORKERS), job_check(2, of=WORKERS, ended=later(9), a="Straggler", b="Faulty")
    )
    assert (faulty.status, faulty.reason) == ("False", "FaultyNodes")
    assert "digits-check-2" in faulty.message and "1 faulty (b), 1 slow (a)" in faulty.message
    assert faulty.message.endswith("workers found on faulty nodes move to others")
    open_ = told(job_check(1, of=WORKERS, c="Inconclusive"))
    assert (open_.status, open_.reason) == ("Unknown", "Inconclusive")


def test_the_evidence_is_quoted() -> None:
    check = job_check(1, of=WORKERS, b="Faulty")
    results = [r.model_copy(update={"message": f"evidence on {r.node}"}) for r in check.status.node_results]
    status = check.status.model_copy(update={"node_results": results})
    message = told(check.model_copy(update={"status": status})).message
    assert "b: evidence on b" in message and "evidence on a" not in message


def test_stragglers_left_out_are_named() -> None:
    found = told(job_check(1, of=WORKERS, a="Straggler"), left_out=frozenset({0}))
    assert found.reason == "Stragglers"
    assert found.message.endswith("worker 0 is left out of the world, being slow")


def test_a_check_that_could_not_be_is_told_with_the_reason() -> None:
    failed = job_check(1, "Failed")
    condition = {"type": "Failed", "status": "True", "reason": "NoWorkers", "message": "nobody is there"}
    conditions = [condition | {"lastTransitionTime": NOW}]
    status = failed.status.model_validate(failed.status.to_wire() | {"conditions": conditions})
    found = told(failed.model_copy(update={"status": status}))
    assert (found.status, found.reason) == ("Unknown", "CheckFailed")
    assert found.message.endswith("training goes on: NoWorkers: nobody is there")
    refused = told(refused="nodechecks is forbidden")
    assert refused.reason == "CheckRefused" and "forbidden" in refused.message


def test_before_any_check_it_is_said_whether_one_will_come() -> None:
    coming = told(unvetted=frozenset({0, 1}))
    assert (coming.status, coming.reason) == ("Unknown", "NotYetChecked")
    assert event(None, stated(None, NODES_CHECKED, coming, NOW)) is None
    assert told().reason == "Fresh"
    assert finding_of(job()) is None


def test_a_check_that_is_deleted_or_interrupted_does_not_go_on_for_ever() -> None:
    going_on = with_condition("Checking")
    assert told(of=going_on).reason == "CheckGone"
    stopped, _ = judge(going_on, phase=JobPhase.SUSPENDED)
    assert conditions(stopped)[NODES_CHECKED].reason == "CheckInterrupted"
    passed = with_condition("AllHealthy")
    ended, events = judge(passed, phase=JobPhase.FAILED, end=ConditionState(ConditionStatus.TRUE, "Ended"))
    assert not events and conditions(ended)[NODES_CHECKED] == conditions(passed)[NODES_CHECKED]
