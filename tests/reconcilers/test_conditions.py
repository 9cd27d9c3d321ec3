"""Conditions: when their time moves, and of which generation of the spec they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crds.job_status import ElasticJobStatus
from crds.model import ConditionStatus
from crds.nodecheck import NodeCheckStatus
from reconcilers.observed.conditions import observed_at, with_condition
from reconcilers.runtime.kinds import ELASTICJOBS, NODECHECKS, SCALEPLANS
from tests.reconcilers.build import NOW
from tests.reconcilers.cluster import NAMESPACE, Hollow


@pytest.mark.parametrize("kind", [ElasticJobStatus, NodeCheckStatus])
def test_status_and_all_its_conditions_are_of_the_generation_that_was_looked_at(kind: Any) -> None:
    conditions = with_condition([], "A", ConditionStatus.TRUE, "Why", "", NOW)
    conditions = with_condition(conditions, "B", ConditionStatus.FALSE, "Why", "", NOW)
    status = observed_at(kind(conditions=conditions), 1)
    later = NOW + timedelta(seconds=1)
    changed = with_condition(status.conditions, "B", ConditionStatus.TRUE, "Why", "", later)
    status = observed_at(status.model_copy(update={"conditions": changed}), 2)
    assert status.observed_generation == 2
    assert [(c.type, c.observed_generation, c.last_transition_time) for c in status.conditions] == [
        ("A", 2, NOW),
        ("B", 2, later),
    ]
    assert observed_at(status, 2) == status


@pytest.mark.real
async def test_conditions_follow_the_spec(hollow: Hollow) -> None:
    client = hollow.client
    await hollow.submit("seen", worker={"minReplicas": 1})

    async def of_generation(generation: int) -> bool:
        status = await hollow.status("seen")
        said = {c.get("observedGeneration") for c in status.get("conditions", ())}
        return status.get("observedGeneration") == generation and said == {generation}

    await hollow.until("conditions of the first generation", lambda: of_generation(1))
    patch = {"spec": {"runPolicy": {"activeDeadlineSeconds": 1_000}}}
    await client.patch(ELASTICJOBS, "seen", patch, NAMESPACE)
    await hollow.until("conditions of the second generation", lambda: of_generation(2))

    asked = {
        NODECHECKS: {"jobName": "nobody"},
        SCALEPLANS: {"ownerJob": "seen", "replicaResourceSpecs": {"evaluator": {"replicas": 1}}},
    }
    for resource, spec in asked.items():
        metadata = {"name": "seen", "namespace": NAMESPACE}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
        await client.create(resource, body)

        async def conditions(resource: Any = resource) -> list[Any]:
            found = await client.get(resource, "seen", NAMESPACE)
            said: list[Any] = found.get("status", {}).get("conditions", [])
            return said

        said = await hollow.until(f"conditions of the {resource.kind}", conditions)
        assert {c.get("observedGeneration") for c in said} == {1}
