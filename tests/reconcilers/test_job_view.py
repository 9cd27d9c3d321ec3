"""Which workers a look at a job, or at a check of it, sees."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controller.cache import Cache
from controller.client import AsyncClient
from controller.reconciler import Request
from crds.elasticjob import ElasticJob
from reconcilers.job.seen import JobReader
from reconcilers.nodecheck.view import CheckView
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import add_indexes
from tests.reconcilers.build import check, job, worker
from tests.reconcilers.caches import shaped_cache


def raw_worker(index: int, owner: str = "uid-digits", **metadata: Any) -> dict[str, Any]:
    raw = worker(index).to_wire()
    owners = [{"kind": "ElasticJob", "name": "digits", "uid": owner, "controller": True}]
    return raw | {"metadata": raw["metadata"] | {"ownerReferences": owners} | metadata}


def cached(of: ElasticJob, *workers: dict[str, Any]) -> Cache:
    cache = shaped_cache(cast(AsyncClient, None))
    add_indexes(cache)
    cache.store(ELASTICJOBS).apply({"apiVersion": "x", "kind": "ElasticJob", **of.to_wire()})
    for raw in workers:
        cache.store(ELASTICWORKERS).apply(raw)
    return cache


async def test_a_job_has_the_workers_that_it_owns_in_its_namespace_and_that_stay() -> None:
    of = job(status={"phase": "Succeeded"})  # of which nothing else is read
    cache = cached(
        of,
        raw_worker(1),
        raw_worker(0),
        raw_worker(0, namespace="tenant-b", uid="x0"),
        raw_worker(2, owner="uid-of-the-job-before"),
        raw_worker(3, deletionTimestamp="2026-01-01T12:00:00Z"),
    )
    seen = await JobReader(cache, Clock()).of(Request("default", "digits"))
    assert seen is not None and [each.metadata.uid for each in seen.workers] == ["w0", "w1"]


async def test_a_look_after_an_edit_asks_the_api_server_for_nothing_and_takes_one_turn() -> None:
    """So it decides from what is stored at its end: nobody's answer lies between what it reads and decides."""
    of = job()
    edited = of.model_copy(update={"metadata": of.metadata.model_copy(update={"generation": 7})})
    reader = JobReader(cached(edited, raw_worker(0), raw_worker(1)), Clock())
    look = reader.of(Request("default", "digits"))
    with pytest.raises(StopIteration) as done:
        look.send(None)
    assert done.value.value is not None and len(done.value.value.workers) == 2


async def test_a_check_asks_the_workers_of_its_namespace_alone() -> None:
    cache = cached(job(), raw_worker(0), raw_worker(0, namespace="tenant-b", uid="x0"))
    found = await CheckView(cache, cast(AsyncClient, None)).workers_of(check(jobName="digits"))
    assert [each.metadata.uid for each in found] == ["w0"]


async def test_a_worker_that_cannot_be_read_hides_none_of_its_siblings() -> None:
    cache = cached(job(status={"phase": "Succeeded"}), raw_worker(0), raw_worker(1), raw_worker(2))
    broken = raw_worker(1, resourceVersion="2")
    broken["spec"]["index"] = "one"
    cache.store(ELASTICWORKERS).apply(broken)
    seen = await JobReader(cache, Clock()).of(Request("default", "digits"))
    assert seen is not None and [each.metadata.uid for each in seen.workers] == ["w0", "w2"]
    assert cache.unreadable_counts()["elasticworkers.elastic.iml.github.io"] == 1
    cache.store(ELASTICWORKERS).apply(raw_worker(1, resourceVersion="3"))
    seen = await JobReader(cache, Clock()).of(Request("default", "digits"))
    assert seen is not None and len(seen.workers) == 3
    assert cache.unreadable_counts()["elasticworkers.elastic.iml.github.io"] == 0
