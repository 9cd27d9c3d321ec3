"""Counts of a large job are not written with each worker that becomes ready; whatever else there is, is at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from crds.agent_report import AgentState
from reconcilers.job.pace import MAX_SECONDS, seconds_to_tell
from reconcilers.job.plan import plan_job
from reconcilers.job.seen import Seen
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.test_job_plan import lost, seen, settled, trains

FORMING = {"phase": "Forming", "round": 0, "reason": "1 of 3 workers are ready"}


def forming(workers: int, ready: int, known: Seen | None = None) -> Seen:
    """Of a job that waits for its workers; `known`: after that look was written."""
    crew = [
        worker(index, **({"agent": report(index, AgentState.READY, 0).to_wire()} if index < ready else {}))
        for index in range(workers)
    ]
    if known is None:
        return seen(crew, job(replicas=workers, status={"phase": "Pending", "rendezvous": FORMING}))
    return seen(crew, settled_job(known))


def settled_job(found: Seen) -> Any:
    plan = plan_job(found, NOW)
    status = found.raw["status"] | plan.status_patch
    status["rendezvous"] = found.raw["status"]["rendezvous"] | plan.status_patch.get("rendezvous", {})
    return found.job.model_validate({**found.job.to_wire(), "status": status})


@pytest.mark.parametrize(("workers", "waits"), [(3, 0.0), (99, 0.0), (300, 0.3), (1_000, 1.0), (9_000, 1.0)])
def test_the_larger_the_job_the_longer_counts_wait_up_to_a_second(workers: int, waits: float) -> None:
    patch = {
        "rendezvous": {"reason": "2 of 3 workers are ready"},
        "replicaStatuses": {"worker": {"active": 2}},
    }
    assert seconds_to_tell({"rendezvous": FORMING}, patch, workers, 0.0) == waits <= MAX_SECONDS
    assert seconds_to_tell({"rendezvous": FORMING}, patch, workers, waits) <= 0


def test_what_its_workers_have_waits_with_their_counts() -> None:
    """`usage` counts Pods, so it differs with each worker that becomes ready."""
    patch = {"replicaStatuses": {"worker": {"active": 2}}, "usage": {"roles": {"worker": {"pods": 2}}}}
    assert seconds_to_tell({"rendezvous": FORMING}, patch, 300, 0.0) == 0.3


@pytest.mark.parametrize(
    "more",
    [
        {"phase": "Running"},
        {"rendezvous": {"reason": "x", "phase": "Formed"}},
        {"conditions": [{"type": "WorldFormed", "status": "True", "message": "x"}]},
        {"conditions": []},
        {"shards": []},
    ],
)
def test_nothing_else_waits(more: dict[str, Any]) -> None:
    known = {"conditions": [{"type": "WorldFormed", "status": "False", "message": ""}], "rendezvous": FORMING}
    assert seconds_to_tell(known, {"message": "2 are ready"} | more, 10_000, 0.0) == 0.0


def test_a_worker_that_becomes_ready_is_told_a_moment_later_and_then_all_that_are() -> None:
    found = replace(forming(300, 3, forming(300, 2)), status_age_seconds=0.1)
    early = plan_job(found, NOW)
    assert early.status_patch == {} and early.acts == () == early.events
    assert early.look_again_seconds == pytest.approx(0.2)
    told = plan_job(replace(found, status_age_seconds=0.3), NOW).status_patch
    assert told["rendezvous"] == {"waitsFor": "3 of at least 300 workers are ready"}


def test_the_world_that_forms_and_the_one_that_breaks_wait_for_nobody() -> None:
    formed = plan_job(replace(forming(300, 300, forming(300, 299)), status_age_seconds=0.0), NOW)
    assert formed.status_patch["rendezvous"]["phase"] == "Formed"
    known = settled(seen(map(trains, range(300)))).job
    broken = seen([lost(0), *map(trains, range(1, 300))], known)
    plan = plan_job(replace(broken, status_age_seconds=0.0), later(5))
    assert plan.status_patch["rendezvous"]["phase"] == "Reforming" and plan.acts
