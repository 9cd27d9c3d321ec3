"""Looks at a large job whose status cannot tell all there is to say (`reconcilers/observed/large_job.py`)."""

from __future__ import annotations

from crds.elasticworker import WorkerPhase
from crds.job_status import MANY_WORKERS, ElasticJobStatus
from crds.model import MAX_CONDITION_MESSAGE
from reconcilers.job.plan import plan_job
from reconcilers.job.seen import Seen
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.workers import Workers
from tests.reconcilers.build import NOW, job, later, worker
from tests.reconcilers.test_job_plan import merged

LONG = ("0/10400 nodes are available: " + "x" * MAX_CONDITION_MESSAGE)[:MAX_CONDITION_MESSAGE]


def condition(type_: str) -> dict[str, object]:
    said = {"type": type_, "status": "False", "reason": "Unschedulable", "message": LONG}
    return said | {"lastTransitionTime": NOW}


def test_they_settle_and_tell_nothing_twice() -> None:
    many = MANY_WORKERS + 1
    status = {"phase": "Pending", "conditions": [condition(f"Kept{n}") for n in range(20)]}
    of = job(replicas=many, status=status)
    waiting = [
        worker(index, WorkerPhase.PENDING, conditions=[condition("Scheduled")]) for index in range(many)
    ]
    raw, told = of.status.to_wire(), []
    for number in range(3):
        seen = Seen(of, {"metadata": {"name": "digits"}, "status": raw}, Workers(waiting))
        plan = plan_job(seen, later(number))
        raw = merged(raw, plan.status_patch)
        of = of.model_copy(update={"status": ElasticJobStatus.model_validate(raw)})
        told.append([event.reason for event in plan.events])
    assert "Unschedulable" in told[0] and told[1:] == [[], []] and not plan.status_patch
    found = condition_of(of.status.conditions, "WorkersScheduled")
    assert found is not None and found.message.startswith("1001 Pods cannot be scheduled: 0/10400 nodes")
    assert len(found.message) < MAX_CONDITION_MESSAGE and found.message.endswith("…")
