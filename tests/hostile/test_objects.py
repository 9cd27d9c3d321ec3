"""Objects and reports that the API server takes: nothing they hold stops anybody but themselves.

The number of examples is that of `make test`; thirty times as many are drawn, others each time, with

    DLR_HOSTILE_EXAMPLES=30 pytest -n0 tests/hostile --hypothesis-profile=random
"""

from __future__ import annotations

import copy
import os
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import Model
from crds.nodecheck import NodeCheck
from crds.scaleplan import ScalePlan
from reconcilers.cordon import wiring as cordons
from reconcilers.metrics import JobMetrics
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS
from reconcilers.runtime.reconciled import sentence
from reconcilers.setup import add_indexes
from reconcilers.worker.worker_status import REPORT_READABLE
from tests.hostile.looks import look_at_job, look_at_plan, pod_of_check, pods_of, show, status_of, wake
from tests.hostile.strategies import REPORTS, api_objects, metadata
from tests.reconcilers.build import NOW, check_worker, pod, report
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.test_job_plan import seen as seen_job
from tests.reconcilers.test_job_plan import trains

JSON = dict[str, Any]
TIMES = int(os.environ.get("DLR_HOSTILE_EXAMPLES", "1"))


def examples(number: int) -> settings:
    return settings(
        max_examples=number * TIMES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


M = TypeVar("M", bound=Model)


def parse_or_none(model: type[M], raw: JSON) -> M | None:
    try:
        return model.model_validate(raw)
    except ValidationError:
        return None


def with_report(index: int, agent: JSON, *, is_current: bool) -> JSON:
    """A worker of the job `digits` with a report of its own."""
    raw = trains(index).model_dump(mode="json", by_alias=True, exclude_none=True)
    own = {"incarnation": 1, "podUid": f"uid-{index}-1"} if is_current else {}
    raw["status"]["agent"] = {**agent, **own}
    raw["metadata"].update(metadata(raw["metadata"]["name"], "default"))
    return raw


def victim() -> tuple[ElasticJob, JSON]:
    """A job of three that trains."""
    of = seen_job([trains(index) for index in range(3)]).job
    raw = of.model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["metadata"].update(metadata("digits", "default", uid=of.metadata.uid))
    return of, raw


VICTIM, VICTIM_RAW = victim()


@examples(60)
@given(REPORTS, st.booleans())
def test_a_report_stops_neither_its_job_nor_its_siblings_nor_those_who_look(
    agent: JSON, is_current: bool
) -> None:
    raw = with_report(1, agent, is_current=is_current)
    wake("ElasticWorker", raw)
    bad = ElasticWorker.model_validate(raw)
    event(f"readable: {bad.status.agent is not None}")
    workers = [trains(0), bad, trains(2)]
    look_at_job(VICTIM, VICTIM_RAW, workers)
    before = status_of(trains(0), pod(0))
    for found in (pod(1), pod(1, phase="Failed"), None):
        status = status_of(bad, found)
        told = [condition for condition in status.conditions if condition.type == REPORT_READABLE]
        assert bool(told) == (bad.status.agent is None), "an unreadable report is told on its worker"
    assert status_of(trains(0), pod(0)) == before
    show(VICTIM_RAW, [_stored(trains(0)), raw, _stored(trains(2))])


def _stored(worker: ElasticWorker) -> JSON:
    raw: JSON = worker.model_dump(mode="json", by_alias=True, exclude_none=True)
    raw["metadata"]["creationTimestamp"] = "2026-01-01T11:00:00Z"
    return raw


@examples(40)
@given(api_objects("ElasticJob", "bad"))
def test_a_job_is_either_looked_after_or_says_that_it_cannot_be_read(raw: JSON) -> None:
    wake("ElasticJob", raw)
    job = parse_or_none(ElasticJob, raw)
    event(f"readable: {job is not None}")
    if job is None:
        with pytest.raises(ValidationError) as error:
            ElasticJob.model_validate(raw)
        assert len(sentence(error.value)) < 600
        return
    look_at_job(job, raw)
    pods_of(job, raw)
    show(raw, [])


@examples(50)
@given(api_objects("ScalePlan", "bad"), st.booleans())
def test_a_scale_plan_stops_no_job(raw: JSON, is_for_victim: bool) -> None:
    raw["spec"]["ownerJob"] = "digits"
    raw["metadata"]["namespace"] = "default"
    wake("ScalePlan", raw)
    plan = parse_or_none(ScalePlan, raw)
    if plan is not None:
        look_at_plan(plan, raw, VICTIM if is_for_victim else None, [trains(index) for index in range(3)])


@examples(35)
@given(api_objects("NodeCheck", "bad"))
def test_a_node_check_gets_its_pod_or_says_that_it_cannot_be_read(raw: JSON) -> None:
    wake("NodeCheck", raw)
    check = parse_or_none(NodeCheck, raw)
    if check is not None:
        pod_of_check(check, check_worker())


@examples(15)
@given(
    api_objects("ElasticJob", "bad"),
    REPORTS,
    api_objects("ScalePlan", "bad"),
    api_objects("NodeCheck", "bad"),
)
def test_metrics_of_others_are_the_same_whoever_is_there_beside_them(
    job: JSON, agent: JSON, plan: JSON, check: JSON
) -> None:
    alone = scraped([])
    worker = with_report(0, agent, is_current=True)
    worker["metadata"] = metadata("bad-worker-0", uid="w-bad")
    worker["spec"]["jobName"] = "bad"
    beside = scraped([(ELASTICJOBS, job), (ELASTICWORKERS, worker), (SCALEPLANS, plan), (NODECHECKS, check)])
    assert beside == alone


def scraped(more: list[tuple[Any, JSON]]) -> list[str]:
    """The victim's metrics."""
    cache = shaped_cache(None)
    add_indexes(cache)
    cordons.add_indexes(cache)
    others = [(ELASTICWORKERS, _stored(trains(index))) for index in range(3)]
    for resource, raw in [(ELASTICJOBS, VICTIM_RAW), *others, *more]:
        cache.store(resource).apply(copy.copy(raw))
    registry = CollectorRegistry()
    registry.register(JobMetrics(cache, Clock(now=lambda: NOW), lambda: True))
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if 'namespace="default"' in line]


def test_each_time_that_only_kubernetes_takes_spoils_its_own_report_alone() -> None:
    for time in ("2026-01-01T00:00:00+99:99", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00Zt x"):
        raw = with_report(1, report(1).to_wire() | {"since": time}, is_current=True)
        worker = ElasticWorker.model_validate(raw)
        assert worker.status.agent is None
        (condition,) = status_of(worker, pod(1)).conditions
        assert (condition.type, condition.reason) == (REPORT_READABLE, "ReportUnreadable")
        assert condition.message.startswith("status.agent.since: ")
