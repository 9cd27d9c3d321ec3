"""PodDisruptionBudgets: what their status says, which evictions they refuse, and how `kubectl drain` waits."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import PODS, Resource

from .objects import budget, manifest, unschedulable_pod
from .rawapi import Api, Reply
from .resources import BUDGETS
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

EVICTIONS = Resource("policy", "v1", "evictions", "Eviction")


async def healthy_pod(api: Api, namespace: str, name: str, app: str = "a", **fields: Any) -> None:
    """A Pod that no node runs, and that says that it is ready."""
    made = unschedulable_pod(namespace, name, labels={"app": app}, **fields)
    (await api.create(PODS, made)).expect(201)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "conditions": [ready]}
    (await api.patch(PODS, namespace, name, {"status": status}, sub="status")).expect(200)


async def evict(api: Api, namespace: str, name: str, **query: str) -> Reply:
    eviction = manifest(EVICTIONS, namespace, name)
    return await api.call("POST", PODS.path(namespace, name, "eviction"), body=eviction, query=query)


async def settled(api: Api, namespace: str, **wanted: Any) -> JSON:
    """The budget `a`, once its status says this of the spec that it has."""

    def says(body: JSON) -> bool:
        status = body.get("status", {})
        seen = status.get("observedGeneration") == body["metadata"]["generation"]
        return seen and wanted.items() <= status.items()

    async def probe() -> JSON:
        return (await api.get(BUDGETS, namespace, "a")).expect(200)

    return await eventually(probe, until=says)


@pytest.mark.usefixtures("controllers")
async def test_an_eviction_beyond_the_budget_is_refused_and_says_what_is_needed(
    api: Api, namespace: str
) -> None:
    (await api.create(BUDGETS, budget(namespace, "a", minAvailable=1))).expect(201)
    for name in ("one", "two"):
        await healthy_pod(api, namespace, name)
    await settled(api, namespace, disruptionsAllowed=1)
    (await evict(api, namespace, "one", dryRun="All")).expect(201)
    (await api.get(PODS, namespace, "one")).expect(200)
    version = (await api.list(PODS, namespace)).expect(200)["metadata"]["resourceVersion"]
    async with api.watch(PODS, namespace, resourceVersion=version) as watch:
        (await evict(api, namespace, "one")).expect(201)
        gone = (await watch.until(lambda event: event["type"] == "DELETED"))[-1]["object"]
    assert gone["metadata"]["name"] == "one"
    (target,) = [c for c in gone["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")

    await settled(api, namespace, currentHealthy=1, disruptionsAllowed=0)
    refusal = await evict(api, namespace, "two")
    status = refusal.refused(429, "TooManyRequests")
    assert status["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert "Retry-After" not in refusal.headers
    (cause,) = status["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget a needs 1 healthy pods and has 1 currently"
    (await api.delete(PODS, namespace, "two")).expect(200)
