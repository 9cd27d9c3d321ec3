from __future__ import annotations

from dataclasses import replace
from typing import Any

from crds.agent_report import AgentFailure, AgentReport, CheckpointMemory, Resumed
from crds.checkpoint_files import Tier
from crds.elasticworker import ExitClass
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous, Resume
from reconcilers.failure import budgets
from reconcilers.failure.budgets import Failed
from reconcilers.job.events import of_resume as events
from reconcilers.observed.exit_class import classify_process
from reconcilers.observed.resources import memory_checkpoint_fault
from reconcilers.observed.workers import Workers
from reconcilers.world.decision import Constraints
from reconcilers.world.decision import resumed as of_rank_0
from reconcilers.world.participants import Ages, participants_of
from tests.reconcilers.build import NOW, bounds, decide, failure, job, report, worker

WORLD = Rendezvous(round=4, phase=RendezvousPhase.FORMED, members=[1, 2], incarnations=[1, 1], world_size=2)


def resumed(round_: int = 4, **more: Any) -> AgentReport:
    memory = CheckpointMemory(resumed=Resumed(round=round_, **{"step": 120, "tier": Tier.PEER, **more}))
    return replace(report(1), memory=memory)


def with_resume(world: Rendezvous, workers: Workers) -> Rendezvous:
    people = participants_of(job(replicas=3), workers, Ages())
    constraints = Constraints(resumed=of_rank_0(world, workers))
    return decide(world, people, bounds(2, 1), NOW, constraints).rendezvous


def of(agent: AgentReport) -> Workers:
    return Workers([worker(0), worker(1, agent=agent), worker(2)])


def test_rank_0_says_what_the_world_goes_on_from() -> None:
    world = with_resume(WORLD, of(resumed()))
    assert world.resume == Resume(step=120, tier=Tier.PEER)
    assert [event.message for event in events(WORLD, world)] == [
        "round 4 goes on from a peer's copy, step 120"
    ]
    (lives,) = events(WORLD, world, lived_on=1)
    assert lives.message == "round 4 goes on from a peer's copy, step 120; 1 of 2 processes lived on"
    assert not list(events(world, with_resume(world, of(resumed())))), "it is told once"


def test_it_is_told_when_the_processes_have_loaded_it_and_not_before() -> None:
    loading = replace(report(1), memory=CheckpointMemory(step=120))
    assert with_resume(WORLD, of(loading)) == WORLD
    world = with_resume(WORLD, of(resumed(step=500, tier=Tier.STORAGE)))
    assert [event.message for event in events(WORLD, world)] == ["round 4 goes on from storage, step 500"]


def test_what_is_said_of_another_round_is_not_of_this() -> None:
    assert with_resume(WORLD, of(resumed(3))) == WORLD
    reforming = WORLD.model_copy(update={"phase": RendezvousPhase.REFORMING})
    assert of_rank_0(reforming, of(resumed())) is None


def test_a_damaged_checkpoint_spends_no_budget_but_waits_when_it_comes_again() -> None:
    text = "dlr.checkpoint.checkpointer.DamagedCheckpointError: the checkpoint of step 3 is not used"
    found: AgentFailure = failure(0, 1, message=text)
    assert classify_process(found) is ExitClass.DAMAGED_CHECKPOINT
    budget = None
    for _ in range(20):
        budget = budgets.after(budget, Failed(ExitClass.DAMAGED_CHECKPOINT, text, reached=5))
        assert budgets.overdrawn(budget, 0, "the job") is None
    assert budget is not None and not budget.spent
    assert budgets.hold_seconds(budget, 30.0) == budgets.MAX_HOLD_SECONDS
    assert "checkpoints in memory were damaged" in budgets.why_held(budget)


def asking(size: str, **resources: Any) -> str | None:
    template = {"spec": {"containers": [{"name": "main", "image": "i", "resources": resources}]}}
    asks = job(template=template, worker={"memoryCheckpoint": {"size": size}})
    return memory_checkpoint_fault(asks, "worker")


def test_slots_that_have_no_room_are_refused_by_name() -> None:
    assert asking("4Gi") is None
    assert asking("4Gi", limits={"memory": "16Gi"}, requests={"memory": "8Gi"}) is None
    fault = asking("4Gi", limits={"memory": "4096Mi"})
    assert fault is not None and fault.startswith("spec.replicaSpecs.worker.memoryCheckpoint.size: 4Gi does")
    assert asking("4Gi", limits={"memory": "16Gi"}, requests={"memory": "1Gi"}) is not None
    unit = asking("20")
    assert unit is not None and unit.endswith("at least; a size has a unit, such as 20Gi")
    assert asking("191Ki") is not None and asking("192Ki") is None
    assert asking("0") == "spec.replicaSpecs.worker.memoryCheckpoint.size: 0 is no amount of memory"
