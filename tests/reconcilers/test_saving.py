"""Checkpoints that fail are a warning, and an Event, once for each reason."""

from __future__ import annotations

from collections.abc import Sequence

from crds.agent_report import AgentState
from crds.checkpoint_files import CheckpointTrouble
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobWarning
from crds.rendezvous import Rendezvous
from reconcilers.conditions.reported import CHECKPOINTS_FAILING
from reconcilers.job.plan import JobPlan
from tests.reconcilers.build import job, report, worker
from tests.reconcilers.judging import judge, warnings, with_status
from tests.reconcilers.test_loss import look, of_world


def trains(
    index: int, trouble: CheckpointTrouble | None = None, message: str = "", round_: int = 1
) -> ElasticWorker:
    told = {"round": round_, "firstStep": 1, "lastStep": 20}
    said = {"reason": trouble, "message": message} if trouble else None
    agent = report(
        index, state=AgentState.RUNNING, observed_round=round_, rounds=[told], checkpoint_trouble=said
    )
    return worker(index, agent=agent.to_wire())


def said(of: ElasticJob) -> tuple[str | None, str] | None:
    found = warnings(of).get(CHECKPOINTS_FAILING)
    return found and (found.reason, found.message)


def told(plan: JobPlan) -> list[str]:
    return [event.message for event in plan.events if event.reason == CHECKPOINTS_FAILING]


def test_it_is_told_once_and_taken_back_when_it_works() -> None:
    plan, after = look(of_world(), trains(0), trains(1, CheckpointTrouble.STORAGE, "step 10: full"))
    message = "digits-worker-1, first: step 10: full"
    assert said(after) == ("StorageFails", message) and told(plan) == [message]
    plan, same = look(after, trains(0), trains(1, CheckpointTrouble.STORAGE, "step 20: full"))
    assert said(same) == said(after) and told(plan) == [], "a newer step is no news"
    storage = CheckpointTrouble.STORAGE
    plan, more = look(after, trains(0, storage, "step 10: full"), trains(1, storage, "step 10: full"))
    assert said(more) == said(after) and told(plan) == [], "nor is another worker with the same"
    plan, both = look(after, *(trains(index, CheckpointTrouble.SLOT, "x" * 512) for index in (0, 1)))
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
    _, after = look(of_world(), trains(0), trains(1, CheckpointTrouble.STORAGE, "step 10: full"))
    plan, starting = look(after, trains(0), worker(1, agent=report(1).to_wire()))
    assert said(starting) == said(after) and not [e for e in plan.events if e.reason == "CheckpointsSaved"]
    plan, failing = look(starting, trains(0), trains(1, CheckpointTrouble.STORAGE, "step 90: full"))
    assert said(failing) == said(after) and told(plan) == []
    plan, gone = look(starting, trains(0))
    assert said(gone) is None, "nobody is left who tells of it"


def test_it_is_taken_back_when_who_told_it_stands_by_and_others_make_steps() -> None:
    _, failing = look(of_world(), trains(0), trains(1, CheckpointTrouble.STORAGE, "step 10: full"))
    shrunk = {"round": 2, "members": [0], "incarnations": [1], "world_size": 1}
    world = failing.status.rendezvous.model_copy(update=shrunk)
    standby = worker(1, agent=report(1).to_wire())
    known = warnings(failing)[CHECKPOINTS_FAILING]
    assert judged(known, [trains(0), standby], world) == known, "nobody has tried in this round"
    assert judged(known, [trains(0, round_=2), standby], world) is None
