"""What a job used, and what the next job of its name begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobUsage, ProfileUse, WorldSize
from crds.phases import JobPhase
from reconcilers.autoscaling import profile
from reconcilers.autoscaling.usage import (
    MIN_STEPS,
    best_size,
    is_due,
    marginal_efficiency,
    usage_of,
    with_memory_peaks,
    with_round,
)
from reconcilers.observed.workers import Workers
from reconcilers.scale.request import ScaleRequest
from tests.reconcilers.build import job, later, report, worker
from tests.reconcilers.judging import with_status

GIB = 2**30
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


def asking(**amounts: Any) -> dict[str, Any]:
    resources = {"limits": {name.replace("gpu", "nvidia.com/gpu"): each for name, each in amounts.items()}}
    return {"spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]}}


def using(index: int, memory: int) -> ElasticWorker:
    used = {"cpuCores": 0.0, "memoryPeakBytes": memory}
    return worker(index, agent=report(index, usage=used).to_wire())


def test_the_peak_stays_when_its_pod_is_gone() -> None:
    of = job(template=TEMPLATE)
    usage = with_memory_peaks(of, JobUsage(), Workers([using(0, 5 * GIB), using(1, GIB)]))
    assert with_memory_peaks(of, usage, Workers([using(0, GIB)])).memory_peak_bytes == {"worker": 5 * GIB}


def figures(round_: int, steps: int, seconds: float, samples: int | None = None) -> RoundProgress:
    return RoundProgress(
        round=round_, first_step=1, last_step=1 + steps, stepping_seconds=seconds, samples_per_step=samples
    )


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 99)), max_size=40))
def test_each_round_counts_and_sizes_are_bounded(rounds: list[tuple[int, int]]) -> None:
    usage = JobUsage()
    for number, (workers, steps) in enumerate(rounds, start=1):
        usage = with_round(usage, workers, figures(number, steps, steps * 2.0))
    assert usage.round == len(rounds)
    assert len(usage.worlds) <= 8
    assert len(usage.model_dump_json(by_alias=True)) < 2_048
    if len({workers for workers, _ in rounds}) <= 8:
        total = sum(steps for _, steps in rounds)
        assert sum(size.steps for size in usage.worlds) == total


def trained(round_: int, world_phase: str = "Formed", **status: Any) -> ElasticJob:
    """A job of two workers, three from round 2 on."""
    history = [
        {"state": "Training", "since": later(n), "round": n, "size": 2 + (n > 1)}
        for n in range(1, round_ + 1)
    ]
    world = {"round": round_, "phase": world_phase}
    return job(template=TEMPLATE, status={"rendezvous": world, "history": history} | status)


def test_a_round_counts_once_it_is_over_with_the_size_of_its_world() -> None:
    told = [figures(1, 30, 60.0), figures(2, 40, 40.0)]
    workers = Workers([worker(0, agent=report(0, rounds=told).to_wire())])
    assert not is_due(trained(1)) and not is_due(trained(1, "Reforming"))
    usage = usage_of(trained(2), workers)
    assert usage is not None and is_due(trained(2))
    assert (usage.round, [(size.workers, size.steps) for size in usage.worlds]) == (1, [(2, 30)])
    assert not is_due(trained(2, usage=usage.to_wire()))
    for of in (
        trained(2, "Forming", usage=usage.to_wire()),
        trained(2, phase="Failed", usage=usage.to_wire()),
    ):
        ended = usage_of(of, workers)
        assert ended is not None and is_due(of)
        assert (ended.round, [(size.workers, size.steps) for size in ended.worlds]) == (2, [(2, 30), (3, 40)])


def rate(workers: int, steps: int, seconds: float, samples: int | None = None) -> WorldSize:
    return WorldSize(workers=workers, steps=steps, seconds=seconds, samples_per_step=samples)


def test_a_gain_is_of_samples_where_they_are_known_and_else_of_workers() -> None:
    fixed = {n: rate(n, 100, 100 / speed, 64) for n, speed in ((4, 1.0), (8, 1.5))}
    assert marginal_efficiency(fixed, 4, 8) == pytest.approx(0.5)
    shares = {n: rate(n, 100, 100 / speed) for n, speed in ((4, 1.0), (8, 0.75))}
    assert marginal_efficiency(shares, 4, 8) == pytest.approx(0.5)
    assert marginal_efficiency({4: rate(4, MIN_STEPS - 1, 1.0), 8: fixed[8]}, 4, 8) is None
    assert (best_size(fixed, 0.5), best_size(fixed, 0.6), best_size({}, 0.6)) == (8, 4, None)


def finished(name: str, memory: int, worlds: dict[int, float], at: float = 0.0, **more: Any) -> ElasticJob:
    """`worlds`: seconds that a step takes, by workers."""
    sizes = [WorldSize(workers=n, steps=100, seconds=100 * each).to_wire() for n, each in worlds.items()]
    usage = {"worlds": sizes, "memoryPeakBytes": {"worker": memory}}
    return job(name, status={"phase": "Succeeded", "completionTime": later(at), "usage": usage}, **more)


def new(name: str = "bert-3", **spec: Any) -> ElasticJob:
    worker_spec = {"minReplicas": 1, "maxReplicas": 16} | spec.pop("worker", {})
    return job(name, **{"replicas": 1, "optimizeMode": "cluster", "worker": worker_spec} | spec)


HISTORY = (
    finished("bert-1", 10 * GIB, {4: 1.0, 8: 1.1}),
    finished("bert-2", 5 * GIB, {8: 1.1, 16: 2.2}, at=60),
    finished("gpt-1", 99 * GIB, {2: 1.0}),
)


def begun(of: ElasticJob, history: Sequence[ElasticJob]) -> ScaleRequest:
    request = profile.begin(of, history, "")
    assert isinstance(request, ScaleRequest)
    return request


def test_what_the_user_wrote_stays() -> None:
    own = new(template=asking(memory="1Gi"))
    assert profile.profile_of(own, HISTORY).memory_bytes == {}
    assert profile.profile_of(own, HISTORY).workers == 8
    counted = new(replicas=2)
    assert profile.profile_of(counted, HISTORY).workers is None
    applied = '{"spec": {"replicaSpecs": {"worker": {"replicas": 1}}}}'
    metadata = counted.metadata.model_copy(
        update={"annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied}}
    )
    assert profile.says_count(new().model_copy(update={"metadata": metadata}))
    both = new(replicas=2, template=asking(memory="1Gi"))
    use = profile.begin(both, HISTORY, "")
    assert isinstance(use, ProfileUse)
    assert use.message == "the job's own spec has all that bert-2, bert-1 could provide"


def test_a_one_that_was_applied_on_the_server_is_the_users_and_a_default_is_not() -> None:
    owned = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:template": {}}}}}
    said = {"f:spec": {"f:replicaSpecs": {"f:worker": {"f:template": {}, "f:replicas": {}}}}}
    assert profile.says_count(new(), [{"operation": "Apply", "fieldsV1": said}])
    assert not profile.says_count(new(), [{"operation": "Apply", "fieldsV1": owned}])
    assert not profile.says_count(new(), [{"operation": "Update", "fieldsV1": said}]), "it owns defaults too"


def test_what_a_failed_import_used_is_no_measure_of_training() -> None:
    broken = finished("gpt-2", GIB // 8, {}, at=60)
    broken = with_status(broken, phase=JobPhase.FAILED)
    assert profile.profile_of(new("gpt-3"), [broken]).is_empty
    trained = with_status(finished("gpt-1", 9 * GIB, {2: 1.0}), phase=JobPhase.FAILED)
    assert profile.profile_of(new("gpt-3"), [broken, trained]).of == ("gpt-1",)


def test_a_job_without_workers_asks_for_memory_alone() -> None:
    serving = {"ps": {"replicas": 1, "template": asking()}, "chief": {"replicas": 1, "template": asking()}}
    usage = {"memoryPeakBytes": {"ps": GIB}}
    status = {"phase": "Succeeded", "completionTime": later(0), "usage": usage}
    before = [job("j-1", replicaSpecs=serving, status=status)]
    roles = job("j-2", replicaSpecs=serving, optimizeMode="cluster")
    request = begun(roles, before)
    assert request.replicas == {}
    assert {type_: asked.requests for type_, asked in request.resources.items()} == {
        "ps": {"memory": "1229Mi"}
    }


def test_only_cluster_mode_asks_and_only_before_it_begins() -> None:
    assert profile.is_due(new(), has_workers=False)
    assert not profile.is_due(job(optimizeMode="single-job"), has_workers=False)
    assert not profile.is_due(new(suspend=True), has_workers=False)
    assert not profile.is_due(new(), has_workers=True)
    assert not profile.is_due(new(status={"rendezvous": {"round": 1}}), has_workers=False)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("bert", "bert"),
        ("bert-12", "bert"),
        ("bert-2026-11-23", "bert"),
        ("bert7b", "bert7b"),
        ("resnet50", "resnet50"),
        ("resnet50-2", "resnet50"),
        ("42", "42"),
    ],
)
def test_jobs_of_one_kind_are_named_alike_but_for_numbers_at_the_end(name: str, stem: str) -> None:
    assert profile.stem_of(new(name)) == stem


def test_the_best_size_is_one_that_the_job_may_have() -> None:
    assert profile.profile_of(new(worker={"maxReplicas": 6}), HISTORY).workers == 6
    pairs = new(worker={"maxReplicas": 7, "replicas": 1}, elasticPolicy={"nodeUnit": 1})
    assert profile.profile_of(pairs, HISTORY).workers == 7
