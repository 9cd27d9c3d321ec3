"""Of which suspensions Events tell."""

from __future__ import annotations

from crds.elasticjob import ElasticJob
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.plan import plan_job
from reconcilers.job.seen import Seen
from reconcilers.observed.workers import Workers
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job


def looked_at(of: ElasticJob, *, suspend: bool) -> tuple[ElasticJob, list[str]]:
    """The job after a look at it, and what was told of it."""
    of = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": suspend})})
    status = of.status.to_wire()
    plan = plan_job(Seen(of, {"metadata": {"name": "digits"}, "status": status}, Workers(())), NOW)
    status = merged({"status": status}, {"status": plan.status_patch})["status"]
    told = [event.reason for event in plan.events if event.reason in ("Suspended", "Resumed")]
    return ElasticJob.model_validate({**of.to_wire(), "status": status}), told


def test_a_job_that_is_made_suspended_begins_without_a_word_of_it() -> None:
    made, told = looked_at(job(), suspend=True)
    assert told == [] and made.status.phase == "Suspended"
    _, told = looked_at(made, suspend=False)
    assert told == []


def test_a_job_that_has_trained_is_suspended_and_resumed_with_a_word() -> None:
    world = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=[0], incarnations=[1], world_size=1)
    trains = job(status={"phase": "Running", "rendezvous": world.to_wire()})
    held, told = looked_at(trains, suspend=True)
    assert told == ["Suspended"]
    _, told = looked_at(held, suspend=False)
    assert told == ["Resumed"]
