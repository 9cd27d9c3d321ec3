"""The whole decision about a job in one pure function."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit, WorkerPhase
from crds.failure_texts import early_finish_text
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.plan import ACT_LOOKS, MIN_ACTS, JobPlan, plan_job
from reconcilers.look import ObservedJob
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import RequestVerb
from reconcilers.scale.request import Origin, ScaleRequest
from tests.counting import calls, cpu_seconds
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, check, job, later, node_sets, report, worker
from tests.reconcilers.job_stage import all_checks, at, checked_job, job_check
from tests.reconcilers.judging import after, seen_of

BACK = {"spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}]}}


def trains(index: int, **status: Any) -> ElasticWorker:
    return worker(index, **{"agent": report(index, AgentState.RUNNING, 1).to_wire()} | status)


def lost(index: int, exit_class: ExitClass = ExitClass.OOM) -> ElasticWorker:
    end = WorkerExit(incarnation=1, exit_class=exit_class, reason="x", message="gone", time=NOW)
    return worker(index, WorkerPhase.FAILED, lastExit=end.to_wire(), restarts={exit_class.value: 1})


def seen(workers: Iterable[ElasticWorker], of: ElasticJob | None = None, **more: Any) -> ObservedJob:
    workers = Workers(workers)
    members = list(range(len(workers)))
    world = Rendezvous(
        round=1,
        phase=RendezvousPhase.FORMED,
        members=members,
        incarnations=[1] * len(members),
        world_size=len(members),
        master_address="127.0.0.1",
        master_port=1,
        reason="all workers are ready",
        formed_at=NOW,
    )
    of = of or job(
        replicas=len(members), template=BACK, status={"phase": "Running", "rendezvous": world.to_wire()}
    )
    pods = {w.metadata.uid: None for w in workers if w.status.pod_name}
    return seen_of(of, workers, pods=pods, **more)


def settled(found: ObservedJob) -> ObservedJob:
    """After the first look, which writes down what follows from the world and the workers."""
    return seen(found.workers, after(found.job, plan_job(found, NOW)))


def test_the_same_view_comes_to_the_same_plan_and_is_left_as_it_was() -> None:
    found = seen([trains(0), lost(1), trains(2)])
    before = found.job.model_copy(deep=True)
    assert plan_job(found, later(1)) == plan_job(found, later(1))
    assert found.job == before


def test_nothing_is_planned_for_a_job_that_is_as_it_should_be() -> None:
    plan = plan_job(settled(seen(map(trains, range(4)))), later(1))
    assert plan == JobPlan(look_again_seconds=plan.look_again_seconds)


@pytest.mark.parametrize("verdict", ["Faulty", "Healthy"])
def test_a_pod_that_finds_no_node_is_made_again_when_one_that_it_keeps_off_is_cleared(verdict: str) -> None:
    """Nobody changes where a Pod may go once it is made: with room on that node alone, it would wait for ever."""
    unscheduled = {
        "type": "Scheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": NOW,
    }
    waits = worker(1, WorkerPhase.PENDING, incarnation=2, nodeName=None, conditions=[unscheduled])
    waits = waits.model_copy(update={"spec": waits.spec.model_copy(update={"faulty_nodes": ["c", "d"]})})
    sets = node_sets(["c"], {"c": verdict})
    ended = {"phase": "Succeeded", "completionTime": NOW, "nodes": ["c"], "nodeSets": sets}
    checks = all_checks(check(nodes=["c"], status=ended))
    plan = plan_job(seen([trains(0), waits], vetting=checks), later(5))
    found = [act.body["spec"] for act in plan.acts if "incarnation" in (act.body or {}).get("spec", {})]
    assert [each["faultyNodes"] for each in found] == ([] if verdict == "Faulty" else [["d"]])
    assert plan.look_again_seconds is not None and plan.look_again_seconds <= 60.0


def failed(index: int, message: str) -> ElasticWorker:
    told = {"sequence": 1, "round": 1, "rank": index, "exitCode": 1, "message": message, "time": NOW}
    return trains(index, agent=report(index, AgentState.FAILED, 1).to_wire() | {"failure": told})


def ended_job(observed: int | None, generation: int) -> ElasticJob:
    of = job(status={"phase": "Succeeded", "completionTime": NOW, "observedGeneration": observed})
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"generation": generation})})


def test_an_edit_of_an_ended_job_is_told_to_have_no_effect_and_once() -> None:
    plan = plan_job(seen([], ended_job(2, 3)), later(9))
    (event,) = plan.events
    assert (event.type, event.reason) == ("Warning", "EditWithoutEffect")
    assert event.message.startswith("the job had succeeded before this edit, which therefore has no effect")
    assert plan.status_patch["observedGeneration"] == 3, "so that nobody tells it again"
    assert plan_job(seen([], ended_job(3, 3)), later(9)).events == ()
    assert plan_job(seen([], ended_job(None, 3)), later(9)).events == (), "an earlier dlr did not say"


def test_who_only_followed_is_named_nowhere_when_the_job_has_ended() -> None:
    """The world waits for word of who was first, and the job ends with it: not even its reason names another."""
    known = settled(seen(map(trains, range(3)))).job
    worker_spec = known.spec.replica_specs["worker"].model_copy(update={"restart_count": 0})
    spec = known.spec.model_copy(update={"replica_specs": {"worker": worker_spec}})
    known = known.model_copy(update={"spec": spec})
    peer = "RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.2]:4711"
    first = plan_job(seen([trains(0), failed(1, peer), trains(2)], known), later(5))
    waiting = merged(known.status.to_wire(), first.status_patch)
    assert waiting["rendezvous"]["phase"] == "Reforming" and waiting["phase"] == "Restarting"
    known = ElasticJob.model_validate({**known.to_wire(), "status": waiting})
    crew = [failed(0, early_finish_text("rank 0", 11)), failed(1, peer), trains(2)]
    ended = merged(waiting, plan_job(seen(crew, known), later(6)).status_patch)
    assert ended["phase"] == "Failed" and ended["lastFailure"]["worker"] == "digits-worker-0"
    assert "digits-worker-1" not in json.dumps(ended)


# --- growth ---------------------------------------------------------------------------------------------------

FEW, MANY = 50, 800


def steady(number: int) -> ObservedJob:
    return settled(seen(map(trains, range(number))))


def out_of_memory(number: int) -> ObservedJob:
    nodes = [{"status": {"allocatable": {"memory": "64Gi"}}} for _ in range(number)]
    found = settled(seen(map(trains, range(number))))
    return seen(map(lost, range(number)), found.job, nodes=nodes)


def rolling(number: int) -> ObservedJob:
    """All Pods were built with other resources, and nobody trains yet: the first find of the findings."""
    found = seen([worker(i, WorkerPhase.PENDING) for i in range(number)], job(replicas=number, template=BACK))
    return ObservedJob(found.job, found.raw, found.workers, pods=dict.fromkeys(found.pods, "another"))


def checked(number: int) -> ObservedJob:
    """Several checks tested the Pods that these workers had before."""
    before, crew = ([at(i, f"n{i}", incarnation=life) for i in range(number)] for life in (1, 2))
    checks = [job_check(n, of=before, ended=later(n)) for n in range(1, 6)]
    vetting = all_checks(*checks, nodes=[f"n{i}" for i in range(number)])
    return seen(crew, checked_job(number), vetting=vetting)


@pytest.mark.parametrize("situation", [steady, out_of_memory, rolling, checked])
def test_a_look_grows_with_the_number_of_workers_and_no_faster(situation: Any) -> None:
    """16 times as many: 16 times the work, where a square would be 256 times. In calls, and in time for C's."""
    few, many = situation(FEW), situation(MANY)
    assert plan_job(many, later(1)) is not None
    growth = MANY / FEW
    assert calls(lambda: plan_job(many, later(1))) < 1.3 * growth * calls(lambda: plan_job(few, later(1)))
    taken = cpu_seconds(lambda: plan_job(many, later(1)))
    assert taken < 6 * growth * cpu_seconds(lambda: plan_job(few, later(1)))


def test_pods_that_wait_for_new_resources_are_told_and_not_rolled_while_new_ones_cannot_be_made() -> None:
    def look(cpu: str) -> JobPlan:
        of = seen([trains(0), trains(1)]).job.to_wire()
        main = {"name": "main", "image": "x", "resources": {"limits": {"cpu": cpu}}}
        of["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": {"containers": [main]}}
        found = seen([trains(0), trains(1)], ElasticJob.model_validate(of))
        return plan_job(replace(found, pods=dict.fromkeys(found.pods, "of another")), NOW)

    rolled, refused = look("1").status_patch, look("lots")
    scaled = next(c for c in refused.status_patch["conditions"] if c["type"] == "Scaled")
    assert (
        scaled["status"] == "False" and scaled["message"] == "still to get new resources: worker 0, worker 1"
    )
    assert not refused.acts and refused.status_patch.get("rendezvous") is None
    assert not refused.status_patch.get("migrations")
    assert rolled.get("rendezvous") or rolled.get("migrations"), "it would be rolled otherwise"


@pytest.mark.parametrize("phase", [RendezvousPhase.REFORMING, RendezvousPhase.FORMED])
def test_the_worker_that_a_plan_removes_goes_and_not_the_last(phase: RendezvousPhase) -> None:
    """The look that sees the lower count sees which it is; a world that is broken keeps nobody."""
    known = settled(seen(map(trains, range(3)))).job.to_wire()
    uid, asked = known["metadata"]["uid"], {"replicas": {"worker": 2}, "removed": {"worker": [0]}}
    request = ScaleRequest.model_validate({"id": "uid-p", "job": uid, "origin": Origin.PLAN, **asked})
    known["metadata"]["annotations"] = request.to_patch()["metadata"]["annotations"]
    known["spec"]["replicaSpecs"]["worker"]["replicas"] = 2
    known["status"]["rendezvous"]["phase"] = phase
    of, gone = ElasticJob.model_validate(known), []
    for _ in range(2):
        found = seen(map(trains, range(3)), of)
        made = plan_job(found, NOW)
        gone += [act.name for act in made.acts if act.verb is RequestVerb.DELETE]
        status = merged(found.raw["status"], made.status_patch)
        of = ElasticJob.model_validate({**of.to_wire(), "status": status})
    assert of.status.retired == {"worker": [0]} and {*gone} == {"digits-worker-0"}


def acts_of(plan: JobPlan, verb: RequestVerb) -> list[str]:
    return [act.name for act in (*plan.first, *plan.acts) if act.verb is verb and act.subresource is None]


@pytest.mark.parametrize("count", [150, 1_100])
def test_workers_that_go_are_deleted_some_a_look_until_all_are_gone(count: int) -> None:
    """One look at 10,000 of them would take longer than a reconcile may, again and again."""
    known, crew = settled(seen(map(trains, range(2)))).job, list(map(trains, range(count)))
    gone: list[str] = []
    for _ in range(count):
        plan = plan_job(seen(crew, known), later(1))
        now_gone = acts_of(plan, RequestVerb.DELETE)
        assert len(now_gone) <= max(MIN_ACTS, len(crew) // ACT_LOOKS)
        gone += now_gone
        crew = [w for w in crew if w.metadata.name not in now_gone]
        if len(crew) == 2:
            break
        assert now_gone and plan.look_again_seconds == 0.0
    assert len(gone) == len(set(gone)) == count - 2
    plan = plan_job(seen(crew, known), later(1))
    assert acts_of(plan, RequestVerb.DELETE) == [] and plan.look_again_seconds != 0.0


@pytest.mark.parametrize("count", [150, 1_100])
def test_workers_that_failed_are_relaunched_some_a_look_until_all_are(count: int) -> None:
    known = settled(seen(map(trains, range(count)))).job
    crew = {w.metadata.name: w for w in map(lost, range(count))}
    done: list[str] = []
    for _ in range(count):
        plan = plan_job(seen(crew.values(), known), later(5))
        now_done = acts_of(plan, RequestVerb.PATCH)
        assert 0 < len(now_done) <= max(MIN_ACTS, count // ACT_LOOKS)
        done += now_done
        crew |= {name: next_incarnation(crew[name]) for name in now_done}
        if len(done) == count:
            break
        assert plan.look_again_seconds == 0.0
    assert len(done) == len(set(done)) == count
    assert acts_of(plan_job(seen(crew.values(), known), later(5)), RequestVerb.PATCH) == []


def next_incarnation(of: ElasticWorker) -> ElasticWorker:
    spec = of.spec.model_copy(update={"incarnation": of.spec.incarnation + 1})
    return of.model_copy(update={"spec": spec})


@pytest.mark.parametrize("count", [2, 350])
def test_a_resumed_job_is_told_to_go_on_after_all_pods_from_before_have_a_successor(count: int) -> None:
    """The status that says so shows no more which Pods the suspension still has to end."""
    suspended = settled(seen(map(trains, range(count)))).job
    status = suspended.status.model_copy(update={"phase": JobPhase.SUSPENDED})
    known = suspended.model_copy(update={"status": status})
    crew = {w.metadata.name: w for w in map(trains, range(count))}
    relaunched: list[str] = []
    for _ in range(count):
        plan = plan_job(seen(crew.values(), known), later(5))
        assert 0 < len(plan.first) <= MIN_ACTS
        now_done = [act.name for act in plan.first]
        relaunched += now_done
        crew |= {name: next_incarnation(crew[name]) for name in now_done}
        if not plan.is_interim:
            break
        assert plan == JobPlan(first=plan.first, look_again_seconds=0.0, is_interim=True)
    assert sorted(relaunched) == sorted(crew)
    assert plan.status_patch["phase"] != JobPhase.SUSPENDED
