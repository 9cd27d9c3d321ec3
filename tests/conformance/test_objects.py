"""What the server owns in an object: identity, versions, generation, status; and who wins when two write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Maker
from .objects import widget
from .rawapi import Api, revision
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_a_name_is_taken_once(api: Api, make: Maker) -> None:
    await make.widget()
    status = (await api.create(WIDGETS, widget(make.namespace, "w"))).refused(409, "AlreadyExists")
    assert status["message"] == f'{WIDGETS.group_resource} "w" already exists'
    replies = await asyncio.gather(*(api.create(WIDGETS, widget(make.namespace, "v")) for _ in range(8)))
    assert sorted(reply.status for reply in replies) == [201] + [409] * 7


async def test_generation_counts_changes_of_spec_only(api: Api, make: Maker) -> None:
    await make.widget()

    async def generation(patch: JSON, sub: str = "") -> int:
        reply = await api.patch(WIDGETS, make.namespace, "w", patch, sub=sub)
        return int(reply.expect(200)["metadata"]["generation"])

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"phase": "Running"}}, sub="status") == 1
    assert await generation({"spec": {"size": 4}}) == 2
    assert await generation({"spec": {"size": 4}}) == 2
    assert await generation({"spec": {"size": 5}, "metadata": {"generation": 77}}) == 3


async def test_status_is_written_through_its_subresource_only(api: Api, make: Maker) -> None:
    obj = widget(make.namespace, "w") | {"status": {"phase": "Given"}}
    assert "status" not in (await api.create(WIDGETS, obj)).expect(201)
    await api.patch(WIDGETS, make.namespace, "w", {"status": {"phase": "Running"}}, sub="status")
    patch = {"status": {"phase": "Stolen"}, "spec": {"size": 9}}
    body = (await api.patch(WIDGETS, make.namespace, "w", patch)).expect(200)
    assert (body["status"]["phase"], body["spec"]["size"]) == ("Running", 9)
    body["status"]["phase"] = "Stolen"
    assert (await api.put(WIDGETS, body)).expect(200)["status"]["phase"] == "Running"


async def test_the_status_subresource_writes_status_only(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"size": 5}, labels={"a": "b"})
    patch = {
        "status": {"phase": "Running"},
        "spec": {"size": 9},
        "metadata": {"labels": {"a": "c"}, "finalizers": ["x/y"]},
    }
    body = (await api.patch(WIDGETS, make.namespace, "w", patch, sub="status")).expect(200)
    assert body["status"]["phase"] == "Running"
    assert body["spec"]["size"] == 5
    assert body["metadata"]["labels"] == {"a": "b"}
    assert "finalizers" not in body["metadata"]
    body["spec"]["size"] = 10
    body["status"]["phase"] = "Done"
    body = (await api.put(WIDGETS, body, sub="status")).expect(200)
    assert (body["spec"]["size"], body["status"]["phase"]) == (5, "Done")
    assert body["metadata"]["uid"] == made["metadata"]["uid"]
    got = (await api.get(WIDGETS, make.namespace, "w", sub="status")).expect(200)
    assert got == (await api.get(WIDGETS, make.namespace, "w")).expect(200)


async def test_a_stale_update_conflicts(api: Api, make: Maker) -> None:
    made = await make.widget()
    fresh = (await api.put(WIDGETS, {**made, "spec": {**made["spec"], "size": 6}})).expect(200)
    assert revision(fresh) > revision(made)
    status = (await api.put(WIDGETS, {**made, "spec": {**made["spec"], "size": 7}})).refused(409, "Conflict")
    assert status["message"] == (
        f'Operation cannot be fulfilled on {WIDGETS.group_resource} "w": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert status["details"] == {"name": "w", "group": WIDGETS.group, "kind": WIDGETS.plural}
    stale = {**made, "status": {"phase": "Running"}}
    (await api.put(WIDGETS, stale, sub="status")).refused(409, "Conflict")
