"""Evictions, and the status of the PodDisruptionBudgets that hold them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    PODS,
    WIDGETS,
    Answer,
    Api,
    config_map,
    owned_by,
    pod,
    widget,
)

pytestmark = pytest.mark.real

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


async def running_pod(api: Api, name: str, *, ready: bool = True, **metadata: Any) -> None:
    body = pod(name, labels={"app": "a"})
    body["metadata"] |= metadata
    await api.created(PODS, body)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
    await api.post(f"{PODS}/{name}/binding", binding | {"target": {"kind": "Node", "name": "node-0"}})
    condition = {"type": "Ready", "status": str(ready)}
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [condition]}})


def budget(**spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "a"}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"selector": selector, **spec},
    }


async def evict(api: Api, name: str, **query: Any) -> Answer:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return await api.post(f"{PODS}/{name}/eviction", eviction, **query)


async def test_an_eviction_asks_the_disruption_budget_and_says_what_it_needs(api: Api) -> None:
    for name in ("one", "two"):
        await running_pod(api, name)
    await api.created(BUDGETS, budget(minAvailable=1))
    assert (await evict(api, "one", dryRun="All")).code == 201
    assert (await evict(api, "one")).code == 201
    evicted = (await api.get(f"{PODS}/one")).body
    assert "deletionTimestamp" in evicted["metadata"]
    (target,) = [c for c in evicted["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
    refused = await evict(api, "two")
    assert refused.code == 429 and "Retry-After" not in refused.headers
    (cause,) = refused.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget all needs 1 healthy pods and has 1 currently"
    await api.delete(f"{BUDGETS}/all")
    assert (await evict(api, "two")).code == 201


async def test_who_is_not_ready_may_go_while_the_budget_is_met_or_says_so(api: Api) -> None:
    await running_pod(api, "well")
    await running_pod(api, "ill", ready=False)
    await api.created(BUDGETS, budget(minAvailable=2))
    assert (await evict(api, "ill")).code == 429
    await api.patch(f"{BUDGETS}/all", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}})
    assert (await evict(api, "ill", dryRun="All")).code == 201
    await api.patch(f"{BUDGETS}/all", {"spec": {"unhealthyPodEvictionPolicy": None, "minAvailable": 1}})
    assert (await evict(api, "ill")).code == 201
    assert (await evict(api, "well")).code == 429


async def test_two_budgets_for_one_pod_are_refused_as_such(api: Api) -> None:
    await running_pod(api, "one")
    for name in ("all", "other"):
        await api.created(BUDGETS, budget(minAvailable=0) | {"metadata": {"name": name}})
    refused = await evict(api, "one")
    assert refused.code == 500 and "more than one PodDisruptionBudget" in refused.message


async def test_a_budget_s_status_is_kept_in_step_with_its_pods(widgets: Api) -> None:
    def says(**wanted: Any) -> Callable[[Answer], bool]:
        return lambda answer: wanted.items() <= (answer.body.get("status") or {}).items()

    owner = await widgets.created(WIDGETS, widget("owner", {"replicas": 4}))
    await widgets.created(BUDGETS, budget(minAvailable="50%"))
    path = f"{BUDGETS}/all"
    await widgets.eventually(path, says(expectedPods=0, disruptionsAllowed=0, observedGeneration=1))
    for name in ("one", "two", "three"):
        await running_pod(widgets, name, ownerReferences=owned_by(owner))
    counted = {"expectedPods": 4, "desiredHealthy": 2, "currentHealthy": 3, "disruptionsAllowed": 1}
    await widgets.eventually(path, says(**counted))
    assert (await evict(widgets, "one")).code == 201
    await widgets.eventually(path, says(currentHealthy=2, disruptionsAllowed=0))
    assert (await evict(widgets, "two")).code == 429
    await widgets.patch(path, {"spec": {"minAvailable": 1}})
    await widgets.eventually(path, says(expectedPods=3, disruptionsAllowed=1, observedGeneration=2))


async def test_a_share_of_pods_whose_owner_has_no_count_allows_nothing_and_says_why(api: Api) -> None:
    owner = await api.created(CONFIG_MAPS, config_map("owner"))
    await running_pod(api, "one", ownerReferences=owned_by(owner))
    await api.created(BUDGETS, budget(maxUnavailable=1))
    why = "configmaps does not implement the scale subresource"
    found = await api.eventually(f"{BUDGETS}/all", lambda answer: "conditions" in answer.body["status"])
    (condition,) = found.body["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("SyncFailed", why)
    assert why in (await evict(api, "one")).body["details"]["causes"][0]["message"]
