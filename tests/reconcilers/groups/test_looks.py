"""What a look at a job with replica groups costs."""

from __future__ import annotations

from typing import Any

import pytest

from crds.elasticjob import ElasticJob
from reconcilers.groups.reconciler import ReplicaGroupsReconciler
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import add_indexes
from tests.counting import calls
from tests.reconcilers import build
from tests.reconcilers.caches import shaped_cache

pytestmark = pytest.mark.real

GROUPS = 20
SHARDS = [{"name": "files", "epoch": 0, "size": 100, "digest": "", "retries": 3, "maxFailed": 0}]


def owned_by(uid: str) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": ELASTICJOBS.api_version,
            "kind": "ElasticJob",
            "name": uid,
            "uid": uid,
            "controller": True,
        }
    ]


class Groups:
    """A job with replica groups in the caches."""

    def __init__(self, workers: int) -> None:
        self.cache = shaped_cache()
        add_indexes(self.cache)
        self.reconciler = ReplicaGroupsReconciler(None, self.cache, None, Clock())  # type: ignore[arg-type]
        self.job = self.put_job("llm", [])
        for group in range(GROUPS):
            self.put_job(f"llm-group-{group}", owned_by(self.job.metadata.uid))
            for index in range(workers):
                self.put_worker(group, index)

    def put_job(self, name: str, owners: list[dict[str, Any]]) -> ElasticJob:
        wire = build.job(name).to_wire()
        wire["metadata"]["ownerReferences"] = owners
        self.cache.store(ELASTICJOBS).apply(wire)
        return ElasticJob.model_validate(wire)

    def put_worker(self, group: int, index: int, version: int = 1, **report: Any) -> None:
        wire = build.worker(index, agent=build.report(index, **report).to_wire()).to_wire()
        owner, (named,) = f"uid-llm-group-{group}", owned_by(f"uid-llm-group-{group}")
        wire["metadata"] |= {
            "name": f"{owner}-{index}",
            "uid": f"{owner}-{index}",
            "ownerReferences": [named],
        }
        wire["metadata"]["resourceVersion"] = str(version)
        self.cache.store(ELASTICWORKERS).apply(wire)

    def pulling(self) -> dict[str, list[Any]]:
        found = self.cache.store(ELASTICJOBS).by_index(BY_OWNER, self.job.metadata.uid)
        return self.reconciler._pulling(self.job, found)


def test_workers_are_looked_up_only_where_one_of_them_pulls_shards() -> None:
    few, many = Groups(1), Groups(50)
    assert many.pulling() == {}
    assert calls(many.pulling) == calls(few.pulling)
    many.put_worker(7, 3, version=2, shards=SHARDS)
    found = many.pulling()
    assert len(found) == GROUPS and {len(workers) for workers in found.values()} == {50}


@pytest.mark.parametrize("shards", [None, []])
def test_a_worker_that_pulls_no_more_is_looked_up_no_more(shards: Any) -> None:
    groups = Groups(2)
    groups.put_worker(7, 1, version=2, shards=SHARDS)
    assert groups.pulling()
    groups.put_worker(7, 1, version=3, shards=shards)
    assert groups.pulling() == {}
