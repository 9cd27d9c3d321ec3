"""Server-side printing: Tables over HTTP, and what kubectl makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import condition, lease, serviceaccount, unschedulable_pod
from .rawapi import TABLE, Api, revision
from .resources import (
    CONFIGMAPS,
    LEASES,
    PODS,
    SECRETS,
    SERVICEACCOUNTS,
    WG,
    WIDGETS,
    Resource,
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


async def test_a_single_object_as_a_table_has_one_row(api: Api, make: Maker) -> None:
    await make.widget("only")
    body = await table(api, WIDGETS.path(make.namespace, "only"))
    assert [row["cells"][0] for row in body["rows"]] == ["only"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Object", WIDGETS.kind)], ids=["none", "object"]
)
async def test_rows_carry_the_object_that_was_asked_for(
    api: Api, make: Maker, include: str, kind: str | None
) -> None:
    await make.widget()
    body = await table(api, WIDGETS.path(make.namespace), includeObject=include)
    obj = body["rows"][0].get("object")
    assert (obj or {}).get("kind") == kind


async def test_a_missing_value_is_an_empty_cell(api: Api, make: Maker) -> None:
    await make.widget()
    body = await table(api, WIDGETS.path(make.namespace))
    cells = dict(zip(columns(body), body["rows"][0]["cells"], strict=True))
    assert cells["Phase"] in (None, "")


async def test_a_column_may_select_from_a_list_of_conditions(api: Api, make: Maker) -> None:
    await make.widget()
    status = {"status": {"phase": "Running", "conditions": [condition("Odd", "False"), condition("Ready")]}}
    (await api.patch(WIDGETS, make.namespace, "w", status, sub="status")).expect(200)
    body = await table(api, WIDGETS.path(make.namespace))
    cells = dict(zip(columns(body), body["rows"][0]["cells"], strict=True))
    assert (cells["Phase"], cells["Ready"]) == ("Running", "True")


async def test_an_error_is_a_status_whatever_was_accepted(api: Api, namespace: str) -> None:
    reply = await api.call("GET", WIDGETS.path(namespace, "none"), accept=TABLE)
    reply.refused(404, "NotFound")


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


@pytest.mark.parametrize(
    ("resource", "obj", "header"),
    [
        (PODS, unschedulable_pod("", "x"), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]),
        (LEASES, lease("", "x", holderIdentity="me"), ["NAME", "HOLDER", "AGE"]),
        (CONFIGMAPS, {"kind": "ConfigMap", "metadata": {"name": "x"}}, ["NAME", "DATA", "AGE"]),
        (SECRETS, {"kind": "Secret", "metadata": {"name": "x"}}, ["NAME", "TYPE", "DATA", "AGE"]),
        (SERVICEACCOUNTS, serviceaccount("", "x"), ["NAME"]),
    ],
    ids=["pods", "leases", "configmaps", "secrets", "serviceaccounts"],
)
async def test_built_in_kinds_print_the_columns_people_know(
    api: Api, namespace: str, controllers: None, resource: Resource, obj: JSON, header: list[str]
) -> None:
    obj = {**obj, "apiVersion": resource.api_version}
    (await api.call("POST", resource.path(namespace), body=obj)).expect(201)
    body = await table(api, resource.path(namespace, "x"))
    shown = [c["name"].upper() for c in body["columnDefinitions"] if not c.get("priority")]
    assert shown[: len(header)] == header
    assert body["rows"][0]["cells"][0] == "x"


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


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("name", f"{WIDGETS.singular_group}/a"),
        ("jsonpath={.spec.size}", "7"),
        ("custom-columns=N:.metadata.name,S:.spec.size", "N S a 7"),
        ("go-template={{.spec.color}}", "red"),
    ],
    ids=["name", "jsonpath", "custom-columns", "go-template"],
)
async def test_kubectl_formats_what_it_gets(
    kubectl: Kubectl, make: Maker, output: str, expected: str
) -> None:
    await make.widget("a", {"size": 7})
    shown = await kubectl.run("get", f"{WG}/a", "-o", output, namespace=make.namespace)
    assert " ".join(shown.stdout.split()) == expected


async def test_kubectl_gets_yaml_and_json(kubectl: Kubectl, make: Maker) -> None:
    made = await make.widget("a")
    output = await kubectl.run("get", WG, "a", "-o", "json", namespace=make.namespace)
    assert output.json["metadata"]["uid"] == made["metadata"]["uid"]
    assert (
        f"kind: {WIDGETS.kind}"
        in (await kubectl.run("get", WG, "a", "-o", "yaml", namespace=make.namespace)).stdout
    )
    many = await kubectl.run("get", f"{WG},cm", "-o", "json", namespace=make.namespace)
    assert many.json["kind"] == "List"


async def test_kubectl_says_what_is_not_found(kubectl: Kubectl, namespace: str) -> None:
    said = await kubectl.refused("get", WG, "none", namespace=namespace)
    assert said.strip() == f'Error from server (NotFound): {WIDGETS.group_resource} "none" not found'
    assert (await kubectl.run("get", WG, "none", "--ignore-not-found", namespace=namespace)).stdout == ""


async def test_kubectl_sorts_and_pages(kubectl: Kubectl, make: Maker) -> None:
    for index, size in enumerate((30, 10, 20)):
        await make.widget(f"w{index}", {"size": size})
    output = await kubectl.run(
        "get", WG, "--sort-by=.spec.size", "--chunk-size=2", "-o", "name", namespace=make.namespace
    )
    assert [line[-2:] for line in output.lines] == ["w1", "w2", "w0"]


async def test_kubectl_watches_a_table(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("first")
    async with kubectl.stream("get", WG, "-w", "--output-watch-events", namespace=make.namespace) as output:
        await output.until("first")
        await make.widget("second")
        await output.until("second")
        await api.patch(WIDGETS, make.namespace, "second", {"spec": {"size": 42}})
        assert (await output.until("42"))[-1].split()[:3] == ["MODIFIED", "second", "42"]
        await api.delete(WIDGETS, make.namespace, "first")
        await output.until("DELETED")


async def test_kubectl_describes_a_custom_resource(kubectl: Kubectl, make: Maker) -> None:
    await make.widget("a", {"size": 7}, annotations={"why": "shown"})
    output = await kubectl.run("describe", WG, "a", namespace=make.namespace)
    assert re.search(r"^Name: +a$", output.stdout, re.M)
    assert re.search(r"^ +Size: +7$", output.stdout, re.M)
    assert "why: shown" in output.stdout
