"""A loss of NaN and checkpoints that fail are warnings, and Events, once for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.store import Change
from crds.agent_report import AgentState
from crds.checkpoint_files import CheckpointTrouble
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobWarning
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.reported import CHECKPOINTS_FAILING, NON_FINITE_LOSS
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.predicates import more_than_progress
from tests.reconcilers.build import job, later, report, worker
from tests.reconcilers.judging import after, judge, seen_of, warnings, with_status

STORAGE = CheckpointTrouble.STORAGE


def trains(index: int, nan_at: int | None = None, round_: int = 1, **said: Any) -> ElasticWorker:
    told = {"round": round_, "firstStep": 1, "lastStep": 20, "nonFiniteStep": nan_at}
    said = {"state": AgentState.RUNNING, "observed_round": round_, "rounds": [told]} | said
    return worker(index, agent=report(index, **said).to_wire())


def fails_to_save(index: int, reason: CheckpointTrouble, message: str) -> ElasticWorker:
    return trains(index, checkpoint_trouble={"reason": reason, "message": message})


def of_world() -> ElasticJob:
    world = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=[0, 1], incarnations=[1, 1])
    return job(status={"phase": "Running", "rendezvous": world.to_wire()})


def look(of: ElasticJob, *workers: ElasticWorker) -> tuple[JobPlan, ElasticJob]:
    """The plan, and the job as it is then."""
    plan = plan_job(seen_of(of, workers), later(1))
    return plan, after(of, plan)


def said(of: ElasticJob, type_: str = CHECKPOINTS_FAILING) -> tuple[str | None, str] | None:
    found = warnings(of).get(type_)
    return found and (found.reason, found.message)


def told(plan: JobPlan, type_: str = CHECKPOINTS_FAILING) -> list[str]:
    return [event.message for event in plan.events if event.reason == type_]


def test_the_first_step_without_a_number_is_told_with_its_rank_and_once() -> None:
    plan, after = look(of_world(), trains(0, 9), trains(1, 8))
    message = (
        "NaN or infinite loss at step 8 of round 1, the first, in digits-worker-1 rank 1; training goes on"
    )
    assert warnings(after)[NON_FINITE_LOSS].message == message and told(plan, NON_FINITE_LOSS) == [message]
    again, same = look(after, trains(0, 8), trains(1, 8))
    assert warnings(same)[NON_FINITE_LOSS].message == message and told(again, NON_FINITE_LOSS) == []
    earlier, _ = look(after, trains(0, 7), trains(1, 8))
    assert len(told(earlier, NON_FINITE_LOSS)) == 1, "who was earlier, and told late"


def test_a_job_that_succeeds_with_such_a_loss_still_says_so() -> None:
    done = {"state": AgentState.SUCCEEDED}
    plan, after = look(of_world(), trains(0, 20, **done), trains(1, **done))
    assert plan.status_patch["phase"] == "Succeeded"
    assert said(after, NON_FINITE_LOSS) is not None and len(told(plan, NON_FINITE_LOSS)) == 1
    assert [event.reason for event in plan.events][-1] == "TrainingSucceeded"


def test_such_a_loss_wakes_the_job() -> None:
    assert more_than_progress(Change(trains(0).to_wire(), trains(0, 9).to_wire()))


def test_checkpoints_that_fail_are_told_once_and_taken_back_when_they_work() -> None:
    plan, after = look(of_world(), trains(0), fails_to_save(1, STORAGE, "step 10: full"))
    message = "digits-worker-1, first: step 10: full"
    assert said(after) == ("StorageFails", message) and told(plan) == [message]
    plan, same = look(after, trains(0), fails_to_save(1, STORAGE, "step 20: full"))
    assert said(same) == said(after) and told(plan) == [], "a newer step is no news"
    plan, more = look(after, *(fails_to_save(index, STORAGE, "step 10: full") for index in (0, 1)))
    assert said(more) == said(after) and told(plan) == [], "nor is another worker with the same"
    plan, both = look(after, *(fails_to_save(index, CheckpointTrouble.SLOT, "x" * 512) for index in (0, 1)))
    assert len(told(plan)) == 1 and len((said(both) or ("", ""))[1]) == 512
    plan, well = look(both, trains(0), trains(1))
    assert said(well) is None and told(plan) == []
    news = [event.message for event in plan.events if event.reason == "CheckpointsSaved"]
    assert news == ["checkpoints are saved again, after SlotTooSmall"]
    plan, still = look(well, trains(0), trains(1))
    assert said(still) == said(well) and not plan.events, "once"


def judged(known: JobWarning, workers: Sequence[ElasticWorker], world: Rendezvous) -> JobWarning | None:
    of = with_status(job(), warnings=[known])
    after, _ = judge(of, CHECKPOINTS_FAILING, workers=workers, world=world)
    return warnings(after).get(CHECKPOINTS_FAILING)


def test_it_stays_while_the_pod_of_who_told_it_is_replaced() -> None:
    _, after = look(of_world(), trains(0), fails_to_save(1, STORAGE, "step 10: full"))
    plan, starting = look(after, trains(0), worker(1, agent=report(1).to_wire()))
    assert said(starting) == said(after) and not [e for e in plan.events if e.reason == "CheckpointsSaved"]
    plan, failing = look(starting, trains(0), fails_to_save(1, STORAGE, "step 90: full"))
    assert said(failing) == said(after) and told(plan) == []
    plan, gone = look(starting, trains(0))
    assert said(gone) is None, "nobody is left who tells of it"


def test_it_is_taken_back_when_who_told_it_stands_by_and_others_make_steps() -> None:
    _, failing = look(of_world(), trains(0), fails_to_save(1, STORAGE, "step 10: full"))
    shrunk = {"round": 2, "members": [0], "incarnations": [1], "world_size": 1}
    world = failing.status.rendezvous.model_copy(update=shrunk)
    standby = worker(1, agent=report(1).to_wire())
    known = warnings(failing)[CHECKPOINTS_FAILING]
    assert judged(known, [trains(0), standby], world) == known, "nobody has tried in this round"
    assert judged(known, [trains(0, round_=2), standby], world) is None
