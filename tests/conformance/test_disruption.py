"""PodDisruptionBudgets: what their status says, which evictions they refuse, and how `kubectl drain` waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.resources import NODES, PODS, Resource

from .kubectl import Kubectl
from .objects import budget, manifest, pod, unschedulable_pod
from .rawapi import Api, Reply, names
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


@pytest.fixture
async def node(embedded: Any, nodes: None, api: Api) -> AsyncIterator[str]:
    """A node of the embedded cluster, which may be drained; it is open again afterwards."""
    name = names((await api.list(NODES)).expect(200))[0]
    yield name
    (await api.patch(NODES, None, name, {"spec": {"unschedulable": None}})).expect(200)


async def test_kubectl_drain_waits_for_the_budget(
    kubectl: Kubectl, api: Api, namespace: str, node: str
) -> None:
    for name in ("one", "two"):
        made = pod(namespace, name, labels={"app": namespace}, terminationGracePeriodSeconds=1)
        (await api.create(PODS, made)).expect(201)
    ready = ("wait", "pod/one", "pod/two", "--for=condition=Ready", "--timeout=300s")
    await kubectl.run(*ready, namespace=namespace)
    (await api.create(BUDGETS, budget(namespace, namespace, minAvailable=1))).expect(201)
    drain = ("drain", node, "--force", f"--pod-selector=app={namespace}", "--timeout=300s")
    async with kubectl.stream(*drain) as output:
        await output.until("Cannot evict pod as it would violate the pod's disruption budget")
        left = [p for p in (await api.list(PODS, namespace)).expect(200)["items"] if not _going(p)]
        assert len(left) == 1
        (await api.patch(BUDGETS, namespace, namespace, {"spec": {"minAvailable": 0}})).expect(200)
        await output.until(f"node/{node} drained")
    assert names((await api.list(PODS, namespace)).expect(200)) == []


def _going(shown: JSON) -> bool:
    return "deletionTimestamp" in shown["metadata"]
