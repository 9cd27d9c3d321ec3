"""A job with replica groups against a real API server: its groups, and what `kubectl scale` may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from controller.errors import Invalid
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.cluster import NAMESPACE, Hollow

pytestmark = pytest.mark.real

POLICY = {"replicaGroups": {"workers": 1, "min": 1}}
TWO = {"replicaGroups": {"workers": 2, "min": 1}}


async def test_groups_are_made_scaled_put_back_and_deleted(hollow: Hollow) -> None:
    client = hollow.client
    await hollow.submit("pair", 2, elasticPolicy=POLICY)
    await hollow.until("the groups' Pods", lambda: hollow.pods("pair-group-1"))
    assert await hollow.pods("pair") == []

    await client.patch(ELASTICJOBS, "pair-group-0", {"spec": {"envs": {"A": "1"}}}, NAMESPACE)

    async def put_back() -> bool:
        return "A" not in ((await hollow.job("pair-group-0"))["spec"].get("envs") or {})

    await hollow.until("the edit to be put back", put_back)

    await client.patch(ELASTICJOBS, "pair", {"spec": {"replicas": 1}}, NAMESPACE, subresource="scale")

    async def is_gone() -> bool:
        listed = await client.list(ELASTICJOBS, NAMESPACE)
        return "pair-group-1" not in {each["metadata"]["name"] for each in listed["items"]}

    await hollow.until("the second group to go", is_gone)
    await client.delete(ELASTICJOBS, "pair", NAMESPACE)

    async def all_gone() -> bool:
        listed = await client.list(ELASTICJOBS, NAMESPACE)
        return not any(each["metadata"]["name"].startswith("pair") for each in listed["items"])

    await hollow.until("the groups to go with their job", all_gone)


async def test_scale_takes_whole_groups_alone(hollow: Hollow) -> None:
    await hollow.submit("whole", 4, elasticPolicy=TWO, suspend=True)

    async def scale(replicas: int) -> Any:
        patch = {"spec": {"replicas": replicas}}
        return await hollow.client.patch(ELASTICJOBS, "whole", patch, NAMESPACE, subresource="scale")

    with pytest.raises(Invalid, match=r"must be a multiple of elasticPolicy\.replicaGroups\.workers"):
        await scale(5)
    with pytest.raises(Invalid, match=r"replicaGroups\.min must not be more than the number of groups"):
        await scale(0)
    await scale(6)
    assert (await hollow.job("whole"))["spec"]["replicaSpecs"]["worker"]["replicas"] == 6
