"""Deletion: options, preconditions, finalizers, collections, and the collector that follows owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.resources import CONFIGMAPS, LEASES, PODS, Resource

from .conftest import Maker
from .objects import lease, owned_by, unschedulable_pod, widget
from .rawapi import Api, names
from .resources import WIDGETS
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

HOLD = "conformance.dlr.dev/hold"


async def gone(make: Maker, resource: Resource, name: str) -> None:
    await eventually(
        lambda: make.api.get(resource, make.namespace, name), until=lambda reply: reply.status == 404
    )


async def child_becomes(make: Maker, until: Callable[[JSON], Any]) -> JSON:
    async def metadata() -> JSON:
        return (await make.api.get(CONFIGMAPS, make.namespace, "child")).expect(200)["metadata"]

    return await eventually(metadata, until=until)


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
async def test_preconditions_guard_a_deletion(api: Api, make: Maker, precondition: str) -> None:
    made = await make.widget()
    wrong = {"uid": "00000000-0000-0000-0000-000000000000", "resourceVersion": "1"}
    options = {"preconditions": {precondition: wrong[precondition]}}
    (await api.delete(WIDGETS, make.namespace, "w", options)).refused(409, "Conflict")
    options = {"preconditions": {precondition: made["metadata"][precondition]}}
    (await api.delete(WIDGETS, make.namespace, "w", options)).expect(200)


async def test_a_finalizer_holds_an_object(api: Api, make: Maker) -> None:
    made = await make.widget(finalizers=[HOLD])
    body = (await api.delete(WIDGETS, make.namespace, "w")).expect(200)
    assert body["kind"] == WIDGETS.kind
    held = body["metadata"]
    assert held["deletionTimestamp"]
    assert held["deletionGracePeriodSeconds"] == 0
    assert held["generation"] == made["metadata"]["generation"] + 1
    again = (await api.delete(WIDGETS, make.namespace, "w")).expect(200)
    assert again["metadata"]["deletionTimestamp"] == held["deletionTimestamp"]
    (await api.create(WIDGETS, widget(make.namespace, "w"))).refused(409, "AlreadyExists")
    reply = await api.patch(WIDGETS, make.namespace, "w", {"metadata": {"finalizers": []}})
    assert reply.expect(200)["metadata"]["uid"] == made["metadata"]["uid"]
    (await api.get(WIDGETS, make.namespace, "w")).refused(404, "NotFound")


async def test_a_collection_is_deleted_by_selector(api: Api, make: Maker) -> None:
    for name, tier in (("a", "front"), ("b", "back"), ("c", "front")):
        await make.widget(name, labels={"tier": tier})
    path = WIDGETS.path(make.namespace)
    reply = await api.call("DELETE", path, query={"labelSelector": "tier=front"})
    assert reply.expect(200)["kind"] in (f"{WIDGETS.kind}List", "Status")
    assert names((await api.list(WIDGETS, make.namespace)).body) == ["b"]
    (await api.call("DELETE", path)).expect(200)
    assert names((await api.list(WIDGETS, make.namespace)).body) == []


async def test_background_deletion_collects_dependents(api: Api, make: Maker, controllers: None) -> None:
    owner = await make.widget("owner")
    references = [owned_by(owner)]
    pod = unschedulable_pod(make.namespace, "p", ownerReferences=references)
    (await api.create(PODS, pod)).expect(201)
    held = lease(make.namespace, "l")
    held["metadata"]["ownerReferences"] = references
    (await api.create(LEASES, held)).expect(201)
    await make.configmap("unrelated")
    reply = await api.delete(WIDGETS, make.namespace, "owner", propagationPolicy="Background")
    assert reply.expect(200)["status"] == "Success"
    assert (await api.get(WIDGETS, make.namespace, "owner")).status == 404
    await gone(make, PODS, "p")
    await gone(make, LEASES, "l")
    (await api.get(CONFIGMAPS, make.namespace, "unrelated")).expect(200)


async def test_foreground_deletion_waits_for_dependents(api: Api, make: Maker, controllers: None) -> None:
    owner = await make.widget("owner")
    await make.configmap("child", ownerReferences=[owned_by(owner)], finalizers=[HOLD])
    options = {"propagationPolicy": "Foreground"}
    body = (await api.delete(WIDGETS, make.namespace, "owner", options)).expect(200)
    assert "foregroundDeletion" in body["metadata"]["finalizers"]
    assert body["metadata"]["deletionTimestamp"]
    await child_becomes(make, lambda metadata: metadata.get("deletionTimestamp"))
    assert (await api.get(WIDGETS, make.namespace, "owner")).status == 200
    await api.patch(CONFIGMAPS, make.namespace, "child", {"metadata": {"finalizers": None}})
    await gone(make, CONFIGMAPS, "child")
    await gone(make, WIDGETS, "owner")


async def test_orphaning_keeps_dependents_and_forgets_the_owner(
    api: Api, make: Maker, controllers: None
) -> None:
    owner = await make.widget("owner")
    await make.configmap("child", ownerReferences=[owned_by(owner)])
    await api.delete(WIDGETS, make.namespace, "owner", {"propagationPolicy": "Orphan"})
    await gone(make, WIDGETS, "owner")
    metadata = await child_becomes(make, lambda metadata: not metadata.get("ownerReferences"))
    assert "deletionTimestamp" not in metadata


async def test_a_new_owner_of_the_same_name_is_another_owner(
    api: Api, make: Maker, controllers: None
) -> None:
    old = await make.widget("owner")
    await api.delete(WIDGETS, make.namespace, "owner")
    new = await make.widget("owner")
    await make.configmap("of-old", ownerReferences=[owned_by(old)])
    await make.configmap("of-new", ownerReferences=[owned_by(new)])
    await gone(make, CONFIGMAPS, "of-old")
    (await api.get(CONFIGMAPS, make.namespace, "of-new")).expect(200)
