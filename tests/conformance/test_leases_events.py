"""Leases, on which liveness and leadership rest, and Events, which tell people what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import lease, manifest
from .rawapi import Api, names
from .resources import (
    EVENTS,
    LEASES,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

LATER = "2026-01-02T03:04:15.123456Z"


async def test_only_one_candidate_takes_a_lease(api: Api, namespace: str) -> None:
    free = (await api.create(LEASES, lease(namespace, "leader"))).expect(201)

    async def take(who: str) -> int:
        spec = {"holderIdentity": who, "leaseDurationSeconds": 15, "acquireTime": LATER, "renewTime": LATER}
        return (await api.put(LEASES, {**free, "spec": spec})).status

    statuses = await asyncio.gather(*(take(f"candidate-{index}") for index in range(6)))
    assert sorted(statuses) == [200] + [409] * 5


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


async def test_kubectl_describe_shows_events(kubectl: Kubectl, api: Api, make: Maker) -> None:
    made = await make.widget("w")
    (await api.create(EVENTS, event(made, "e"))).expect(201)
    other = await make.widget("other")
    (await api.create(EVENTS, {**event(other, "o"), "message": "not about w"})).expect(201)
    output = await kubectl.run("describe", WG, "w", namespace=make.namespace)
    assert "Formed" in output.stdout
    assert "a world of 3 formed" in output.stdout
    assert "not about w" not in output.stdout
