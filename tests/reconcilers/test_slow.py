"""A job that has become slower says so, with what changed then; once, and until it is as fast as before."""

from __future__ import annotations

from typing import Any

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.slow import NOTHING_CHANGED, SLOW, news_of
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.observed.workers import Workers
from tests.reconcilers import judging
from tests.reconcilers.build import job, later, report, worker
from tests.reconcilers.judging import seen_of, warnings

FIGURES = "a step takes 0.42 s since step 1200 (2026-01-01T12:05:00Z), 1.4 times the 0.3 s of before"
AHEAD = 1_200
"""Seconds by which the agents' clocks are ahead of the controller's."""
SLOW_NOW = {"since": later(AHEAD + 300), "step": 1200, "secondsPerStep": 0.42, "usualSeconds": 0.3}
NOW_STEPPING = {"step": 1_210, "time": later(AHEAD + 400)}


def trains(index: int = 0, slow: Any = None, round_: int = 1, **status: Any) -> ElasticWorker:
    told = {"round": round_, "firstStep": 1, "lastStep": 2_000}
    said = report(index, AgentState.RUNNING, round_, rounds=[told], slow=slow, progress=NOW_STEPPING)
    return worker(index, agent=said.to_wire(), **status)


def of_world(round_: int = 1, formed: float = 0.0, **status: Any) -> ElasticJob:
    world = Rendezvous(
        round=round_,
        phase=RendezvousPhase.FORMED,
        members=[0, 1],
        incarnations=[1, 1],
        formed_at=later(formed),
        reason="worker 1 was killed",
    )
    checked = {"nodeCheck": {"enabled": True}} if status.pop("checked", False) else {}
    return job(status={"phase": "Running", "rendezvous": world.to_wire()} | status, **checked)


def look(of: ElasticJob, *workers: ElasticWorker) -> tuple[JobPlan, ElasticJob]:
    """The plan, and the job as it is then."""
    plan = plan_job(seen_of(of, workers), later(400))
    return plan, judging.after(of, plan)


def said(of: ElasticJob) -> str | None:
    found = warnings(of).get(SLOW)
    return found and found.message


def told(plan: JobPlan) -> list[tuple[str, str]]:
    return [(event.reason, event.message) for event in plan.events if event.reason.startswith(SLOW)]


def life(node: str, at: float, number: int = 1) -> dict[str, Any]:
    return {"incarnation": number, "nodeName": node, "createdAt": later(at), "runningAt": later(at)}


def test_it_is_told_once_and_taken_back() -> None:
    plan, after = look(of_world(), trains(0, SLOW_NOW), trains(1))
    message = f"{FIGURES}; {NOTHING_CHANGED}"
    assert said(after) == message and told(plan) == [("Slow", message)]
    again, same = look(after, trains(0, SLOW_NOW), trains(1))
    assert said(same) == said(after) and told(again) == []
    over, fast = look(after, trains(0), trains(1))
    assert said(fast) is None and [reason for reason, _ in told(over)] == ["SlowOver"]


def test_only_rank_0_of_a_world_that_trains_is_heard() -> None:
    _, after = look(of_world(), trains(0), trains(1, SLOW_NOW))
    assert said(after) is None
    _, after = look(of_world(), trains(0, SLOW_NOW), trains(1))
    for others in [[trains(0, None, round_=2)], []]:
        _, later_on = look(after, *others, trains(1))
        assert said(later_on) == said(after), "as long as it has told no step of this round"


def test_what_changed_then_is_said() -> None:
    moved = trains(1, history=[life("node-a", 0), life("node-b", 290, 2)])
    stayed = trains(0, SLOW_NOW, history=[life("node-a", 0), life("node-a", 290, 2)])
    _, after = look(of_world(round_=1, formed=280), stayed, moved)
    assert said(after) == f"{FIGURES}; digits-worker-1 is on node-b since then, before on node-a", (
        "the first round follows nothing"
    )
    workers = trains(0, SLOW_NOW, round_=2), trains(1, round_=2)
    _, after = look(of_world(round_=2, formed=280), *workers)
    assert said(after) == f"{FIGURES}; round 2 began at 2026-01-01T12:04:40Z (worker 1 was killed)"
    _, after = look(of_world(round_=2, formed=100), *workers)
    assert said(after) == f"{FIGURES}; {NOTHING_CHANGED}", "that was long before"


def test_it_is_news_once() -> None:
    workers = Workers([trains(0, SLOW_NOW), trains(1)])
    assert news_of(of_world(), workers) is not None
    _, after = look(of_world(), *workers)
    assert news_of(after, workers) is None
    assert news_of(of_world(), Workers([trains(0)])) is None


def test_checks_that_were_passed_before_count_no_more() -> None:
    plan, after = look(of_world(checked=True), trains(0, SLOW_NOW), trains(1))
    assert after.status.suspected_at == later(400), "by our own clock, when it was first seen"
    assert plan.request is None, "it comes at the next pause"
    assert look(after, trains(0, SLOW_NOW), trains(1))[1].status.suspected_at == later(400)
    known = of_world(suspectedAt=later(350).isoformat())
    assert look(known, trains(0, SLOW_NOW), trains(1))[1].status.suspected_at == later(400)
    assert look(known, trains(0), trains(1))[1].status.suspected_at == later(350)
