"""Server-side printing: Tables over HTTP, and what kubectl makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .rawapi import TABLE, Api, revision
from .resources import (
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

AGE = re.compile(r"^\d+[smhd]")


def columns(table: JSON) -> list[str]:
    return [column["name"] for column in table["columnDefinitions"]]


async def table(api: Api, path: str, **query: str) -> JSON:
    body = (await api.call("GET", path, accept=TABLE + ",application/json", query=query)).expect(200)
    assert body["kind"] == "Table"
    assert body["apiVersion"] == "meta.k8s.io/v1"
    return body


async def test_a_list_as_a_table_has_the_printer_columns(api: Api, make: Maker) -> None:
    await make.widget("a", {"size": 7})
    await make.widget("b", {"note": "hello"})
    body = await table(api, WIDGETS.path(make.namespace))
    assert columns(body) == ["Name", "Size", "Color", "Phase", "Ready", "Note", "Age"]
    by_name = {definition["name"]: definition for definition in body["columnDefinitions"]}
    assert by_name["Note"]["priority"] == 1
    assert by_name["Size"]["type"] == "integer"
    assert by_name["Name"]["format"] == "name"
    rows = {row["cells"][0]: row for row in body["rows"]}
    assert rows["a"]["cells"][1:3] == [7, "red"]
    assert rows["b"]["cells"][5] == "hello"
    assert AGE.match(rows["a"]["cells"][6])
    assert rows["a"]["object"]["kind"] == "PartialObjectMetadata"
    assert rows["a"]["object"]["metadata"]["name"] == "a"
    assert "spec" not in rows["a"]["object"]
    assert revision(body) >= revision(rows["b"]["object"])


async def test_watch_events_are_tables_too(api: Api, make: Maker) -> None:
    since = (await api.list(WIDGETS, make.namespace)).body["metadata"]["resourceVersion"]
    async with api.watch(WIDGETS, make.namespace, accept=TABLE, resourceVersion=since) as watch:
        await make.widget("w")
        await api.patch(WIDGETS, make.namespace, "w", {"spec": {"size": 9}})
        await api.delete(WIDGETS, make.namespace, "w")
        events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    for event in events:
        assert event["object"]["kind"] == "Table"
        assert len(event["object"]["rows"]) == 1
    assert columns(events[0]["object"])[:2] == ["Name", "Size"]
    assert [event["object"]["rows"][0]["cells"][1] for event in events] == [3, 9, 9]


async def test_metadata_alone_can_be_asked_for(api: Api, make: Maker) -> None:
    await make.widget("w", labels={"a": "b"})
    one = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    many = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    body = (await api.call("GET", WIDGETS.path(make.namespace, "w"), accept=one)).expect(200)
    assert (body["kind"], body["metadata"]["labels"]) == ("PartialObjectMetadata", {"a": "b"})
    assert "spec" not in body
    body = (await api.call("GET", WIDGETS.path(make.namespace), accept=many)).expect(200)
    assert body["kind"] == "PartialObjectMetadataList"
    assert "spec" not in body["items"][0]


async def test_kubectl_prints_the_table(kubectl: Kubectl, make: Maker) -> None:
    await make.widget("a", {"size": 7, "note": "wide"}, labels={"k": "v"})
    narrow = await kubectl.run("get", WG, namespace=make.namespace)
    assert narrow.lines[0].split() == ["NAME", "SIZE", "COLOR", "PHASE", "READY", "AGE"]
    assert narrow.lines[1].split()[:3] == ["a", "7", "red"]
    wide = await kubectl.run("get", WG, "-o", "wide", "--show-labels", namespace=make.namespace)
    assert wide.lines[0].split()[-3:] == ["NOTE", "AGE", "LABELS"]
    assert "wide" in wide.lines[1]
    assert "k=v" in wide.lines[1]
    everywhere = await kubectl.run("get", WG, "-A", "--no-headers")
    assert [make.namespace, "a"] in [line.split()[:2] for line in everywhere.lines]
