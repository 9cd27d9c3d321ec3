"""How the reconciler of ScalePlans looks at very many."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest

from controller.errors import NotFound
from controller.reconciler import Request
from reconcilers.runtime.kinds import ELASTICJOBS, SCALEPLANS
from reconcilers.scaleplan.reconciler import BY_OWNER_JOB, ScalePlanReconciler, owner_job
from tests.reconcilers.build import job
from tests.reconcilers.caches import tools_of
from tests.reconcilers.test_job_view import cached


class Nobody:
    """An API server that has nothing, and takes everything."""

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise NotFound(404, "NotFound", "not found", {"name": "digits"})

    async def patch(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def event(self, *_: Any) -> None:
        """Nobody listens."""


def scale_plan(number: int) -> dict[str, Any]:
    spec = {"ownerJob": "digits", "replicaResourceSpecs": {"worker": {"replicas": number % 5 + 1}}}
    metadata = {"name": f"p{number}", "namespace": "default", "uid": f"p{number}", "generation": 1}
    return {"metadata": metadata | {"resourceVersion": str(number + 1)}, "spec": spec}


@pytest.mark.parametrize("has_job", [True, False])
async def test_very_many_plans_are_read_beside_the_event_loop_and_judged_some_a_look(
    has_job: bool, beside: list[str]
) -> None:
    """Eight names of jobs with thousands of plans each would keep all other jobs waiting."""
    cache = cached(job(status={"phase": "Succeeded"}))
    cache.add_index(SCALEPLANS, BY_OWNER_JOB, owner_job)
    if not has_job:
        cache.store(ELASTICJOBS).remove(("default", "digits"))
    for number in range(300):
        cache.store(SCALEPLANS).apply(scale_plan(number))
    nobody: Any = Nobody()
    nobody.patch = AsyncMock(return_value={})
    await ScalePlanReconciler(tools_of(cache, nobody, nobody)).reconcile(Request("default", "digits"))
    assert len(beside) >= 1
    assert nobody.patch.await_count == (10 if has_job else 100)
