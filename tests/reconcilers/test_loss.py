"""A loss of NaN is a warning, and an Event, once."""

from __future__ import annotations

from typing import Any

from controller.store import Change
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.reported import NON_FINITE_LOSS
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.predicates import more_than_progress
from tests.reconcilers.build import job, later, report, worker
from tests.reconcilers.judging import after, seen_of, warnings


def trains(index: int, step: int | None = None, round_: int = 1, **said: Any) -> ElasticWorker:
    told = {"round": round_, "firstStep": 1, "lastStep": 20, "nonFiniteStep": step}
    said = {"state": AgentState.RUNNING, "observed_round": round_, "rounds": [told]} | said
    return worker(index, agent=report(index, **said).to_wire())


def of_world(round_: int = 1, **status: Any) -> ElasticJob:
    world = Rendezvous(round=round_, phase=RendezvousPhase.FORMED, members=[0, 1], incarnations=[1, 1])
    return job(status={"phase": "Running", "rendezvous": world.to_wire()} | status)


def look(of: ElasticJob, *workers: ElasticWorker) -> tuple[JobPlan, ElasticJob]:
    """The plan, and the job as it is then."""
    plan = plan_job(seen_of(of, workers), later(1))
    return plan, after(of, plan)


def said(of: ElasticJob) -> str | None:
    found = warnings(of).get(NON_FINITE_LOSS)
    return found and found.message


def told(plan: JobPlan) -> list[str]:
    return [event.message for event in plan.events if event.reason == NON_FINITE_LOSS]


def test_the_first_step_is_told_with_its_rank_and_once() -> None:
    plan, after = look(of_world(), trains(0, 9), trains(1, 8))
    message = (
        "NaN or infinite loss at step 8 of round 1, the first, in digits-worker-1 rank 1; training goes on"
    )
    assert said(after) == message and told(plan) == [message]
    again, same = look(after, trains(0, 8), trains(1, 8))
    assert said(same) == message and told(again) == []
    earlier, _ = look(after, trains(0, 7), trains(1, 8))
    assert len(told(earlier)) == 1, "who was earlier, and told late"


def test_a_job_that_succeeds_with_it_still_says_so() -> None:
    done = {"state": AgentState.SUCCEEDED}
    plan, after = look(of_world(), trains(0, 20, **done), trains(1, **done))
    assert plan.status_patch["phase"] == "Succeeded"
    assert said(after) is not None and len(told(plan)) == 1
    assert [event.reason for event in plan.events][-1] == "TrainingSucceeded"


def test_it_wakes_the_job() -> None:
    before, after = trains(0).to_wire(), trains(0, 9).to_wire()
    assert more_than_progress(Change(before, after))
