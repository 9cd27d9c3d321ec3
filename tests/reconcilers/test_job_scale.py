from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.errors import WebhookUnavailable
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.model import ResourceRequirements
from crds.rendezvous import Rendezvous
from crds.scaleplan import ScalePlan, ScalePlanStatus
from reconcilers.observed.slots import wanted_slots
from reconcilers.scale.request import Origin, ScaleRequest, own_request, pending
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.uptake import is_from_scale_subresource, take_up, with_moves_done
from reconcilers.scaleplan.verdicts import choose_plan, delayed
from tests.reconcilers.build import NOW, job, report, worker

COUNT = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:replicas": {}}}}}
IMAGE = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:template": {}}}}}


def writer(second: int, fields: dict[str, Any] = COUNT, subresource: str = "") -> dict[str, Any]:
    entry = {"manager": "kubectl", "time": f"2026-01-01T00:00:{second:02}Z", "fieldsV1": fields}
    return entry | ({"subresource": subresource} if subresource else {})


def asking(origin: Origin = Origin.PLAN, id: str = "uid-p", **more: Any) -> ScaleRequest:
    plan, uid = "p" if origin is Origin.PLAN else "", job().metadata.uid
    return ScaleRequest(**{"id": id, "job": uid, "origin": origin, "plan": plan} | more)


def asked(of: ElasticJob, request: ScaleRequest) -> ElasticJob:
    """The job with the request in its annotation."""
    annotations = request.to_patch()["metadata"]["annotations"]
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"annotations": annotations})})


def known(replicas: int = 2, **status: Any) -> ElasticJob:
    return job(replicas=replicas, status={"replicaStatuses": {"worker": {"desired": 2}}} | status)


def test_last_writer_of_the_count_tells_whether_it_came_through_the_scale_subresource() -> None:
    assert not is_from_scale_subresource([])
    assert is_from_scale_subresource([writer(1), writer(2, subresource="scale"), writer(3, IMAGE)])
    assert not is_from_scale_subresource([writer(1, subresource="scale"), writer(2)])
    assert not is_from_scale_subresource([writer(1, {"f:status": {}}, "scale")])


def test_changed_count_says_whose_it_is() -> None:
    def by(of: ElasticJob, fields: Any = ()) -> str:
        scaling = take_up(of, Freshness(), fields, NOW)[0].status.scaling
        assert scaling is not None and scaling.replicas == of.spec.replica_specs["worker"].replicas
        return scaling.by

    three = asking(replicas={"worker": 3})
    assert by(known(3)) == "spec"
    assert by(known(3), [writer(1, subresource="scale")]) == "the scale subresource"
    assert by(asked(known(3), three), [writer(1, subresource="scale")]) == "ScalePlan p"
    assert by(asked(known(3), asking(Origin.SHARDS, replicas={"worker": 3}))) == "shardScaling"
    assert by(asked(known(4), three)) == "spec", "it was edited since"
    assert by(asked(known(3, scaleRequest="uid-p"), three)) == "spec", "the request was merged before"


def test_nothing_is_done_to_a_job_that_was_asked_of_the_one_that_it_is_a_copy_of() -> None:
    """As `kubectl get ej -o yaml`, edited, makes it."""
    more = {"limits": {"memory": "9Gi"}}
    request = asking(
        job="uid-of-another", removed={"worker": [1]}, moved={"worker": [0]}, resources={"worker": more}
    )
    found, *requested = take_up(asked(known(2), request), Freshness(), [], NOW)
    assert requested == list(take_up(known(2), Freshness(), [], NOW)[1:])
    assert (found.status.retired, found.status.migrations, found.status.resources) == ({}, {}, {})


NEGATIVE = {
    "id": "x",
    "job": job().metadata.uid,
    "origin": "ScalePlan",
    "replicas": {"worker": 2},
    "base": -1,
}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"id": 1}', '{"id": "x", "origin": "nobody"}', "\ud800", json.dumps(NEGATIVE)],
)
def test_annotation_that_somebody_else_wrote_asks_for_nothing(text: str) -> None:
    of = known(2)
    annotations = {names.ANNOTATION_SCALE: text}
    odd = of.model_copy(update={"metadata": of.metadata.model_copy(update={"annotations": annotations})})
    assert take_up(odd, Freshness(), [], NOW)[1:] == take_up(of, Freshness(), [], NOW)[1:]


SLOTS = st.dictionaries(st.sampled_from(["worker", "ps"]), st.sets(st.integers(0, 99_999)).map(sorted))
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", 2, "3Gi"]))


@given(
    st.builds(
        ScaleRequest,
        id=st.text(max_size=64),
        job=st.just(job().metadata.uid),
        origin=st.sampled_from(Origin),
        plan=st.text(max_size=253),
        replicas=st.dictionaries(st.sampled_from(["worker", "ps"]), st.integers(0, 10_000)),
        removed=SLOTS,
        moved=SLOTS,
        resources=st.dictionaries(
            st.just("worker"), st.builds(ResourceRequirements, limits=AMOUNTS, requests=AMOUNTS)
        ),
        base=st.none() | st.integers(0, 10_000),
    )
)
def test_request_is_read_as_it_was_written(request_: ScaleRequest) -> None:
    assume(request_.id != (known().status.scale_request or ""))
    assert pending(asked(known(), request_)) == request_


def verdicts(of: ElasticJob, *plans: ScalePlan) -> tuple[str | None, dict[str, str]]:
    chosen, found = choose_plan(plans, of, [worker(0), worker(1)], [])
    return chosen.metadata.name if chosen else None, {v.plan.metadata.name: v.phase.value for v in found}


def plan(name: str, created: int = 0, index: int = 1, version: int = 1) -> ScalePlan:
    metadata = {
        "name": name,
        "resourceVersion": str(version),
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
    }
    spec = {"ownerJob": "digits", "migratePods": [{"id": index}]}
    return ScalePlan.model_validate({"metadata": metadata, "spec": spec})


def test_a_plan_that_waits_for_a_webhook_is_not_newer_for_the_write_that_says_so() -> None:
    first, second = plan("first", version=10), plan("second", version=11)
    status = delayed(first, WebhookUnavailable("it is away", status=500)).act(NOW).body["status"]
    waits = first.model_copy(
        update={
            "status": ScalePlanStatus.model_validate(status),
            "metadata": first.metadata.model_copy(update={"resource_version": "12"}),
        }
    )
    assert verdicts(known(), waits, second) == ("second", {"first": "Superseded"})


def test_a_look_refuses_some_plans_and_the_next_look_others() -> None:
    plans = [plan("good", 1), *(plan(f"bad-{second}", second, index=9) for second in range(2, 27))]
    looks = []
    while plans:
        write, judged_now = verdicts(known(), *plans)
        looks.append((write, set(judged_now.values()), len(judged_now)))
        plans = [each for each in plans if each.metadata.name not in judged_now] if write is None else []
    assert looks == [(None, {"Refused"}, 10), (None, {"Refused"}, 10), ("good", {"Refused"}, 5)]


def test_newest_plan_that_is_not_refused_is_applied_and_those_before_it_are_superseded() -> None:
    old, new, bad = plan("b", 1), plan("a", 2), plan("c", 3, index=9)
    assert verdicts(known(), old, bad, new) == ("a", {"c": "Refused", "b": "Superseded"})
    written = asked(known(), asking(id="uid-a"))
    assert verdicts(written, old, new) == (None, {"a": "Applied", "b": "Superseded"})
    assert verdicts(written, old, new, plan("d", 3)) == ("d", {"a": "Applied", "b": "Superseded"})
    grown = asked(known(), own_request(written, Origin.SHARDS, 2))
    assert verdicts(grown, old, new) == (None, {"a": "Applied", "b": "Superseded"}), "it is remembered"
    finished = known(phase="Failed")
    assert verdicts(finished, old) == (None, {"b": "Refused"})


def moved(
    workers: list[ElasticWorker], world: Rendezvous | None, type_: str = "worker"
) -> dict[str, list[int]]:
    migrations = {type_: {"sources": [0], "targets": [2]}}
    of = job(
        replicaSpecs={
            name: {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
            for name in ("worker", type_)
        },
        status={"migrations": migrations},
    )
    return with_moves_done(of, workers, world)[0].status.retired


def test_without_a_world_a_target_that_runs_has_taken_over() -> None:
    assert moved([worker(0), worker(2)], Rendezvous()) == {"worker": [0]}
    speaking = [worker(index, agent=report(index).to_wire()) for index in (0, 2)]
    assert moved(speaking, None) == {"worker": [0]}
    assert moved([worker(0), worker(2, WorkerPhase.PENDING)], Rendezvous()) == {}
    servers = [
        w.model_copy(update={"spec": w.spec.model_copy(update={"type": "evaluator"})})
        for w in (worker(0), worker(2))
    ]
    world = Rendezvous(round=2, phase="Formed", members=[0, 1], incarnations=[1, 1])
    assert moved(servers, world, "evaluator") == {"evaluator": [0]}


def test_without_a_world_a_worker_that_runs_has_taken_over_though_its_agent_speaks() -> None:
    both = [worker(0, agent=report(0).to_wire()), worker(2, agent=report(2).to_wire())]
    of = job(replicas=2, status={"migrations": {"worker": {"sources": [0], "targets": [2]}}})
    assert with_moves_done(of, both, None)[0].status.retired == {"worker": [0]}


@given(st.data())
def test_a_smaller_count_removes_no_worker_with_a_newer_checkpoint_than_one_that_stays(
    data: st.DataObject,
) -> None:
    """Of a broken world: its newest step may be in the memory of these Pods alone."""
    before = data.draw(st.integers(1, 6))
    count = data.draw(st.integers(1, before))
    steps = data.draw(st.lists(st.sampled_from([None, 0, 28]), min_size=before, max_size=before))
    retired = sorted(data.draw(st.sets(st.integers(0, 2))))
    phase = data.draw(st.sampled_from(["Reforming", "Formed"]))
    status: dict[str, Any] = {"scaling": {"replicas": before, "by": "spec", "at": NOW}}
    status |= {"retired": {"worker": retired} if retired else {}}
    status |= {"rendezvous": {"round": 1, "phase": phase, "members": [0]}}
    slots = wanted_slots(job(replicas=before, status=status), names.WORKER)
    memory = dict(zip(slots, steps, strict=True))
    workers = [
        worker(index, agent=report(index, memory={"step": step}))
        for index, step in memory.items()
        if step is not None
    ]
    after, *_ = take_up(job(replicas=count, status=status), Freshness(), [], NOW, workers=workers)
    kept = wanted_slots(after, names.WORKER)
    assert len(kept) == count and {*kept} <= {*slots}
    gone = {*slots} - {*kept}
    if phase == "Formed":
        assert kept == slots[:count], "all leave by vote, after the same step"
        return
    step = {index: -1 if found is None else found for index, found in memory.items()}
    assert max(map(step.__getitem__, gone), default=-1) <= min(map(step.__getitem__, kept))
    again, *_ = take_up(after, Freshness(), [], NOW, workers=workers)
    assert wanted_slots(again, names.WORKER) == kept
