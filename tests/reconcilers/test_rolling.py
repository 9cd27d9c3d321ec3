from __future__ import annotations

from typing import Any

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.model import ResourceRequirements
from crds.rendezvous import Rendezvous
from reconcilers.job.seen import built_with
from reconcilers.observed.workers import Workers
from reconcilers.scale.rolling import Freshness, Roll, freshness, plan_roll
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.world.participants import Ages, bounds_of, participants_of
from reconcilers.world.rendezvous import Assembly
from tests.counting import Searched
from tests.reconcilers.build import NOW, job, report, worker
from tests.reconcilers.test_rendezvous import formed

TEMPLATE = {
    "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}]}
}


def rolled(
    of: ElasticJob, workers: list[ElasticWorker], world: Rendezvous, *outdated: int, **more: Any
) -> Roll:
    fresh = Freshness(frozenset(("worker", index) for index in outdated))
    people = participants_of(of, workers, Ages())
    return plan_roll(of, Workers(workers), Assembly(world, people, bounds_of(of), NOW), fresh, **more)


def trains(index: int, round_: int = 1, state: AgentState = AgentState.RUNNING) -> ElasticWorker:
    return worker(index, agent=report(index, state, round_).to_wire())


def elastic(replicas: int = 3, minimum: int = 2, **spec: Any) -> ElasticJob:
    return job(replicas=replicas, worker={"minReplicas": minimum}, template=TEMPLATE, **spec)


def test_without_agents_one_goes_after_the_other() -> None:
    roll = rolled(elastic(), [worker(i) for i in range(3)], Rendezvous(), 0, 1, 2)
    assert [w.spec.index for w in roll.relaunches] == [0]
    starting = [worker(0, WorkerPhase.PENDING, 2), worker(1), worker(2)]
    assert rolled(elastic(), starting, Rendezvous(), 1, 2).relaunches == ()


def test_pod_is_outdated_if_it_was_built_with_other_resources() -> None:
    of, known = elastic(), worker(0)
    pods = {known.metadata.uid: built_with(build_job_pod(of, known))}
    assert freshness(of, [known], pods) == Freshness()
    asked = {"resources": {"worker": {"limits": {"memory": "2Gi"}}}}
    assert freshness(elastic(status=asked), [known], pods).outdated == {("worker", 0)}
    own = known.spec.model_copy(update={"resources": ResourceRequirements(limits={"memory": "3Gi"})})
    raised = known.model_copy(update={"spec": own})
    assert freshness(of, [raised], pods).outdated == {("worker", 0)}


def test_nobody_is_searched_for_among_all_members_while_all_pods_are_outdated() -> None:
    workers, world = [trains(i) for i in range(50)], formed(*range(50))
    members = Searched(world.members)
    world = world.model_copy(update={"members": members})
    assert rolled(elastic(50), workers, world, *range(50)).leaving == {0}
    assert members.times == 0
