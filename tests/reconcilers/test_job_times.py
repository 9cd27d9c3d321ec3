"""A leader whose clock was an hour ahead costs its successor's jobs no hour."""

from __future__ import annotations

from typing import Any

import pytest

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from reconcilers.job.plan import plan_job
from reconcilers.job.times import with_times_by_our_clock
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.judging import seen_of

HOUR = 3_600.0


def broken(**status: Any) -> ElasticJob:
    """A job of which two trained; its world waits for a replacement since `reformingSince`."""
    world = {
        "round": 1,
        "phase": "Reforming",
        "members": "0-1",
        "incarnations": {"1": "0-1"},
        "worldSize": 2,
        "formedAt": later(-60),
        "reformingSince": status.pop("since", NOW),
    }
    policy = {"shrinkAfterSeconds": 60, "heartbeatTimeoutSeconds": 30}
    known = {"phase": "Restarting", "rendezvous": world} | status
    return job(worker={"minReplicas": 1}, elasticPolicy=policy, status=known)


def look(of: ElasticJob, after: float, ready: int = 2) -> dict[str, Any]:
    """What is written of the world."""
    workers = [worker(i, agent=report(i, AgentState.READY, 1).to_wire()) for i in range(ready)]
    pods = {each.metadata.uid: None for each in workers}
    found = plan_job(seen_of(of, workers, pods=pods), later(after)).status_patch
    world: dict[str, Any] = found.get("rendezvous", {})
    return world


@pytest.mark.parametrize(("until", "forms"), [(20, False), (HOUR, True)])
def test_no_world_is_held_for_longer_than_a_hold_lasts(until: float, forms: bool) -> None:
    of = broken(
        failureBudget={"heldUntil": later(until), "spent": {"UserError": 3}, "exitClass": "UserError"}
    )
    assert (look(of, 1).get("phase") == "Formed") is forms


def test_a_replacement_is_awaited_from_now_on_where_the_beginning_is_yet_to_come() -> None:
    written = look(broken(since=later(HOUR)), 1, ready=1)
    assert written["reformingSince"] == later(1).isoformat().replace("+00:00", "Z")
    assert look(broken(since=later(1)), 62, ready=1)["phase"] == "Formed"


def test_a_deadline_counts_from_now_on_where_the_start_is_yet_to_come() -> None:
    assert with_times_by_our_clock(broken(startTime=later(HOUR)), later(1)).status.start_time == later(1)
    assert with_times_by_our_clock(broken(startTime=later(5)), NOW).status.start_time == later(5)


def test_times_that_our_clock_can_have_written_stay() -> None:
    times = {"suspectedAt": later(5), "failureBudget": {"heldUntil": later(39)}}
    scaling = {"replicas": 2, "at": NOW, "by": "x"}
    of = broken(since=later(5), scaling=scaling, **times)
    assert with_times_by_our_clock(of, NOW) is of


def test_times_that_are_yet_to_come_end_no_wait_and_suspect_no_check() -> None:
    times = {"suspectedAt": later(HOUR), "failureBudget": {"heldUntil": later(HOUR)}}
    scaling = {"replicas": 2, "at": later(HOUR), "by": "x"}
    status = with_times_by_our_clock(broken(since=later(HOUR), scaling=scaling, **times), NOW).status
    assert (status.suspected_at, status.world.reforming_since, status.world.formed_at) == (
        NOW,
        NOW,
        later(-60),
    )
    assert status.failure_budget is not None and status.failure_budget.held_until is None
    assert status.scaling is not None and status.scaling.at == NOW
