from __future__ import annotations

from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.rendezvous import Rendezvous
from crds.scaleplan import ScalePlan
from reconcilers.observed.desired import DesiredJob
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.uptake import Plans, asked_through_scale, newest, take_up, with_moves_done
from tests.reconcilers.build import NOW, job, report, worker

COUNT = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:replicas": {}}}}}
IMAGE = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:template": {}}}}}


def writer(second: int, fields: dict[str, Any] = COUNT, subresource: str = "") -> dict[str, Any]:
    entry = {"manager": "kubectl", "time": f"2026-01-01T00:00:{second:02}Z", "fieldsV1": fields}
    return entry | ({"subresource": subresource} if subresource else {})


def plan(name: str, phase: str | None, created: int = 0, **replicas: int) -> ScalePlan:
    return ScalePlan.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
            },
            "spec": {"ownerJob": "digits", "removePods": [{"id": 1}]},
            "status": {"phase": phase, "replicas": replicas},
        }
    )


def known(replicas: int = 2, **status: Any) -> ElasticJob:
    return job(replicas=replicas, status={"replicaStatuses": {"worker": {"desired": 2}}} | status)


def test_last_writer_of_the_count_tells_whether_it_came_through_the_scale_subresource() -> None:
    assert not asked_through_scale([])
    assert asked_through_scale([writer(1), writer(2, subresource="scale"), writer(3, IMAGE)])
    assert not asked_through_scale([writer(1, subresource="scale"), writer(2)])
    assert not asked_through_scale([writer(1, {"f:status": {}}, "scale")])


def test_changed_count_says_whose_it_is() -> None:
    def by(of: ElasticJob, plans: Plans, fields: Any = ()) -> str:
        scaling = take_up(of, plans, Freshness(), fields, NOW).job.status.scaling
        assert scaling is not None and scaling.replicas == of.spec.replica_specs["worker"].replicas
        return scaling.by

    named = Plans(named=plan("p", "Scaling", worker=3))
    assert by(known(3), Plans()) == "spec"
    assert by(known(3), Plans(), [writer(1, subresource="scale")]) == "the scale subresource"
    assert by(known(3), named, [writer(1, subresource="scale")]) == "ScalePlan p"
    assert by(known(4), named) == "spec"


def test_count_that_stays_keeps_whose_it_was_and_a_new_jobs_is_no_change() -> None:
    scaling = {"replicas": 2, "by": "ScalePlan old", "at": NOW}
    same = take_up(known(scaling=scaling), Plans(), Freshness(), [], NOW)
    assert same.job.status.scaling is not None and same.job.status.scaling.by == "ScalePlan old"
    assert not same.scale_requested
    assert not take_up(job(), Plans(), Freshness(), [], NOW).scale_requested
    assert take_up(known(5), Plans(), Freshness(), [], NOW).count_changed_from == 2


def test_plan_is_taken_over_once_and_not_before_its_count_is_there() -> None:
    going = plan("p", "Scaling", worker=1)
    early = take_up(known(2, scalePlan="p"), Plans(going, going), Freshness(), [], NOW)
    assert early.plan is None and early.job.status.retired == {}
    now = take_up(known(1, scalePlan="p"), Plans(going, going), Freshness(), [], NOW)
    assert now.plan is going and now.job.status.retired == {"worker": [1]}
    assert now.job.status.scale_plan_uid == "uid-p"
    again = take_up(known(1, scalePlan="p", scalePlanUid="uid-p"), Plans(going, going), Freshness(), [], NOW)
    assert again.plan is None and again.job.status.retired == {}


def test_plan_is_named_before_anything_of_it_is_done() -> None:
    going = plan("p", "Scaling", worker=2)
    unnamed = take_up(known(2), Plans(going), Freshness(), [], NOW)
    assert unnamed.plan is None and unnamed.job.status.scale_plan == "p"
    assert take_up(known(2, scalePlan="p"), Plans(), Freshness(), [], NOW).job.status.scale_plan is None


def test_newest_is_by_age_then_name_of_those_that_were_looked_at_and_have_not_ended() -> None:
    plans = [plan("b", "Created", 1), plan("a", "Scaling", 1), plan("z", "Pending", 0)]
    ended = [plan("x", "Succeeded", 5), plan("y", "Failed", 6), plan("w", None, 7)]
    found = newest([*plans, *ended])
    assert found is not None and found.metadata.name == "b"
    assert newest(ended) is None


def moved(workers: list[ElasticWorker], world: Rendezvous, type_: str = "worker") -> dict[str, list[int]]:
    migrations = {type_: {"sources": [0], "targets": [2]}}
    of = job(
        replicaSpecs={
            name: {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
            for name in ("worker", type_)
        },
        status={"migrations": migrations},
    )
    return with_moves_done(DesiredJob.of(of), workers, world)[0].status.retired


def test_move_is_done_when_the_world_has_the_target_and_not_the_source() -> None:
    both = [worker(0), worker(2)]
    world = Rendezvous(round=2, phase="Formed", members=[1, 2], incarnations=[1, 1])
    assert moved(both, world) == {"worker": [0]}
    assert moved(both, world.model_copy(update={"members": [0, 1]})) == {}
    assert moved(both, world.model_copy(update={"phase": "Reforming"})) == {}


def test_without_a_world_a_target_that_runs_has_taken_over() -> None:
    assert moved([worker(0), worker(2)], Rendezvous()) == {"worker": [0]}
    assert moved([worker(0), worker(2, WorkerPhase.PENDING)], Rendezvous()) == {}
    servers = [
        w.model_copy(update={"spec": w.spec.model_copy(update={"type": "evaluator"})})
        for w in (worker(0), worker(2))
    ]
    world = Rendezvous(round=2, phase="Formed", members=[0, 1], incarnations=[1, 1])
    assert moved(servers, world, "evaluator") == {"evaluator": [0]}


def test_beside_parameter_servers_a_worker_that_runs_has_taken_over_though_its_agent_speaks() -> None:
    both = [worker(0, agent=report(0).to_wire()), worker(2, agent=report(2).to_wire())]
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["serve"]}]}}
    of = job(
        replicaSpecs={name: {"replicas": 2, "template": template} for name in ("worker", "ps")},
        status={"migrations": {"worker": {"sources": [0], "targets": [2]}}},
    )
    assert with_moves_done(DesiredJob.of(of), both, Rendezvous())[0].status.retired == {"worker": [0]}
