"""A namespace has no more ElasticWorkers than the controller's limit: what is beyond it says so, and waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from crds.nodecheck import NodeCheck
from reconcilers.job.plan import plan_job
from reconcilers.nodecheck.view import CheckWorkers
from reconcilers.observed.options import WorkerLimit
from reconcilers.runtime.acts import RequestVerb
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.runtime.refused import RETRY_SECONDS
from tests.reconcilers.build import NOW, job, worker
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.test_job_plan import seen


@pytest.mark.parametrize(("there", "made"), [(0, 3), (98, 2), (100, 0), (120, 0)])
def test_a_job_gets_the_workers_that_its_namespace_has_room_for_and_says_so(there: int, made: int) -> None:
    of = job(replicas=4, status={"phase": "Running"})
    plan = plan_job(seen([worker(0)], of, limit=WorkerLimit(there, 100)), NOW)
    creates = [act for act in plan.acts if act.verb is RequestVerb.CREATE and act.resource == ELASTICWORKERS]
    assert len(creates) == made
    warnings = {each["type"]: each for each in plan.status_patch.get("warnings", ())}
    if made:
        assert "WorkersUnscheduled" not in warnings
    else:
        assert warnings["WorkersUnscheduled"]["reason"] == "NamespaceFull"
        assert f"has {there} ElasticWorkers" in warnings["WorkersUnscheduled"]["message"]
    if made < 3:
        assert plan.look_again_seconds is not None and plan.look_again_seconds <= RETRY_SECONDS


@pytest.mark.parametrize(("most", "made"), [(5, 3), (2, 2), (0, 0)])
async def test_a_check_waits_for_room_in_its_namespace(most: int, made: int) -> None:
    names: list[Any] = []

    async def create(_: object, obj: dict[str, Any]) -> None:
        names.append(obj["metadata"]["name"])

    workers = CheckWorkers(SimpleNamespace(create=create), shaped_cache(), lambda: 0.0, most)  # type: ignore[arg-type]
    metadata = {"name": "c", "namespace": "ns", "uid": "u"}
    check = NodeCheck.model_validate({"metadata": metadata, "spec": {"nodes": ["a", "b", "d"]}})
    refused = await workers.make(check, [(0, "a"), (1, "b"), (2, "d")])
    assert len(names) == made
    assert (refused is not None) is (made < 3)
    assert refused is None or f"dlr makes {most} in one at most" in refused.message
