"""Of which suspensions Events tell, and that their time is none of a deadline's."""

from __future__ import annotations

from crds.elasticjob import ElasticJob
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.plan import plan_job
from reconcilers.observed.run_policy import seconds_to_deadline
from tests.reconcilers.build import NOW, job, later
from tests.reconcilers.judging import after, seen_of


def looked_at(of: ElasticJob, *, suspend: bool) -> tuple[ElasticJob, list[str]]:
    """The job after a look at it, and what was told of it."""
    of = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": suspend})})
    plan = plan_job(seen_of(of), NOW)
    told = [event.reason for event in plan.events if event.reason in ("Suspended", "Resumed")]
    return after(of, plan), told


def test_a_job_that_is_made_suspended_begins_without_a_word_of_it() -> None:
    made, told = looked_at(job(), suspend=True)
    assert told == [] and made.status.phase == "Suspended"
    _, told = looked_at(made, suspend=False)
    assert told == []


def test_a_job_that_has_trained_is_suspended_and_resumed_with_a_word() -> None:
    world = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=[0], incarnations=[1], world_size=1)
    status = {"phase": "Running", "rendezvous": world.to_wire(), "startTime": later(-50)}
    trains = job(status=status, runPolicy={"activeDeadlineSeconds": 60})
    held, told = looked_at(trains, suspend=True)
    assert told == ["Suspended"]
    assert held.status.start_time is None, "a deadline does not run on while the job waits"
    resumed, told = looked_at(held, suspend=False)
    assert told == ["Resumed"]
    assert seconds_to_deadline(resumed, NOW) == 60
