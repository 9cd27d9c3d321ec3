"""Leases, on which liveness and leadership rest, and Events, which tell people what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import lease, manifest
from .rawapi import MERGE_PATCH, STRATEGIC_PATCH, Api, causes, names
from .resources import (
    EVENTS,
    LEASES,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

EARLIER = "2026-01-02T03:04:05.000000Z"
LATER = "2026-01-02T03:04:15.123456Z"


async def test_a_lease_is_renewed_by_patch(api: Api, namespace: str) -> None:
    obj = lease(namespace, "l", holderIdentity="pod-1", leaseDurationSeconds=15, renewTime=EARLIER)
    made = (await api.create(LEASES, obj)).expect(201)
    assert made["spec"]["renewTime"] == EARLIER
    body = (await api.patch(LEASES, namespace, "l", {"spec": {"renewTime": LATER}})).expect(200)
    assert body["spec"] == {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "renewTime": LATER}


async def test_only_one_candidate_takes_a_lease(api: Api, namespace: str) -> None:
    free = (await api.create(LEASES, lease(namespace, "leader"))).expect(201)

    async def take(who: str) -> int:
        spec = {"holderIdentity": who, "leaseDurationSeconds": 15, "acquireTime": LATER, "renewTime": LATER}
        return (await api.put(LEASES, {**free, "spec": spec})).status

    statuses = await asyncio.gather(*(take(f"candidate-{index}") for index in range(6)))
    assert sorted(statuses) == [200] + [409] * 5


@pytest.mark.parametrize(
    ("spec", "status"),
    [({"renewTime": "now"}, 400), ({"leaseDurationSeconds": 0}, 422), ({"leaseDurationSeconds": "x"}, 400)],
    ids=["time", "zero", "type"],
)
async def test_a_bad_lease_is_refused(api: Api, namespace: str, spec: JSON, status: int) -> None:
    reply = await api.create(LEASES, lease(namespace, "l", **spec))
    body = reply.expect(status)
    if status == 422:
        assert causes(body) == {"spec.leaseDurationSeconds": "FieldValueInvalid"}


async def test_renewals_are_watched(api: Api, namespace: str) -> None:
    (await api.create(LEASES, lease(namespace, "l", holderIdentity="me"))).expect(201)
    since = (await api.list(LEASES, namespace)).body["metadata"]["resourceVersion"]
    async with api.watch(LEASES, namespace, resourceVersion=since) as watch:
        await api.patch(LEASES, namespace, "l", {"spec": {"renewTime": LATER}})
        assert (await watch.next())["object"]["spec"]["renewTime"] == LATER


async def test_kubectl_shows_who_holds_a_lease(kubectl: Kubectl, api: Api, namespace: str) -> None:
    (await api.create(LEASES, lease(namespace, "l", holderIdentity="pod-7"))).expect(201)
    output = await kubectl.run("get", "lease", namespace=namespace)
    assert output.lines[0].split() == ["NAME", "HOLDER", "AGE"]
    assert output.lines[1].split()[:2] == ["l", "pod-7"]


def event(about: JSON, name: str, **fields: Any) -> JSON:
    metadata = about["metadata"]
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }
    return manifest(
        EVENTS,
        metadata["namespace"],
        name,
        involvedObject=involved,
        type="Normal",
        reason="Formed",
        message="a world of 3 formed",
        firstTimestamp="2026-01-02T03:04:05Z",
        lastTimestamp="2026-01-02T03:04:05Z",
        count=1,
        source={"component": "conformance"},
        **fields,
    )


async def test_events_are_found_by_what_they_are_about(api: Api, make: Maker) -> None:
    one, two = await make.widget("one"), await make.widget("two")
    (await api.create(EVENTS, event(one, "e1"))).expect(201)
    (await api.create(EVENTS, event(two, "e2"))).expect(201)
    selector = f"involvedObject.name=two,involvedObject.kind={WIDGETS.kind},involvedObject.uid={two['metadata']['uid']}"
    body = (await api.list(EVENTS, make.namespace, fieldSelector=selector)).expect(200)
    assert names(body) == ["e2"]
    for selector, expected in (("type=Warning", []), ("reason=Formed", ["e1", "e2"])):
        body = (await api.list(EVENTS, make.namespace, fieldSelector=selector)).expect(200)
        assert sorted(names(body)) == expected


@pytest.mark.parametrize("content_type", [MERGE_PATCH, STRATEGIC_PATCH])
async def test_an_event_is_counted_up_by_patch(api: Api, make: Maker, content_type: str) -> None:
    (await api.create(EVENTS, event(await make.widget(), "e"))).expect(201)
    patch = {"count": 2, "lastTimestamp": "2026-01-02T03:05:05Z"}
    reply = await api.patch(EVENTS, make.namespace, "e", patch, content_type=content_type)
    assert reply.expect(200)["count"] == 2


async def test_an_event_lives_in_the_namespace_of_what_it_is_about(api: Api, make: Maker) -> None:
    obj = event(await make.widget(), "e")
    obj["involvedObject"]["namespace"] = "elsewhere"
    assert "involvedObject.namespace" in causes((await api.create(EVENTS, obj)).refused(422, "Invalid"))


async def test_kubectl_describe_shows_events(kubectl: Kubectl, api: Api, make: Maker) -> None:
    made = await make.widget("w")
    (await api.create(EVENTS, event(made, "e"))).expect(201)
    other = await make.widget("other")
    (await api.create(EVENTS, {**event(other, "o"), "message": "not about w"})).expect(201)
    output = await kubectl.run("describe", WG, "w", namespace=make.namespace)
    assert "Formed" in output.stdout
    assert "a world of 3 formed" in output.stdout
    assert "not about w" not in output.stdout


async def test_kubectl_lists_events(kubectl: Kubectl, api: Api, make: Maker) -> None:
    made = await make.widget("w")
    (await api.create(EVENTS, event(made, "e"))).expect(201)
    listed = await kubectl.run("get", "events", namespace=make.namespace)
    assert listed.lines[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert f"{WIDGETS.singular}/w" in listed.lines[1]
    about = await kubectl.run("events", "--for", f"{WIDGETS.singular_group}/w", namespace=make.namespace)
    assert "a world of 3 formed" in about.stdout
