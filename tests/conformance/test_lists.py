"""Lists: selectors by label and by field, and pages that add up to one consistent whole."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import unschedulable_pod
from .rawapi import Api, names
from .resources import (
    PODS,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def three(make: Maker) -> None:
    await make.widget("a", labels={"tier": "front", "zone": "x"})
    await make.widget("b", {"color": "blue"}, labels={"tier": "back"})
    await make.widget("c")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=front", "a"),
        ("tier==front", "a"),
        ("tier!=front", "bc"),
        ("tier in (front,back)", "ab"),
        ("tier in (front, other), zone", "a"),
        ("tier notin (front)", "bc"),
        ("tier", "ab"),
        ("!tier", "c"),
        ("tier,!zone", "b"),
        ("tier=front,zone=y", ""),
        ("", "abc"),
    ],
)
async def test_label_selectors(api: Api, make: Maker, selector: str, expected: str) -> None:
    await three(make)
    body = (await api.list(WIDGETS, make.namespace, labelSelector=selector)).expect(200)
    assert sorted(names(body)) == list(expected)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name!=a", "bc"),
        ("spec.color=blue", "b"),
        ("spec.color!=blue,metadata.name!=c", "a"),
        ("metadata.namespace=elsewhere", ""),
    ],
)
async def test_field_selectors(api: Api, make: Maker, selector: str, expected: str) -> None:
    await three(make)
    body = (await api.list(WIDGETS, make.namespace, fieldSelector=selector)).expect(200)
    assert sorted(names(body)) == list(expected)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=", "pq"),
        ("spec.nodeName=node-x", ""),
        ("status.phase=Pending", "pq"),
        ("status.phase!=Pending", ""),
        ("spec.restartPolicy=Never", "q"),
        ("spec.schedulerName=default-scheduler,metadata.name=p", "p"),
    ],
)
async def test_field_selectors_of_pods(api: Api, namespace: str, selector: str, expected: str) -> None:
    (await api.create(PODS, unschedulable_pod(namespace, "p"))).expect(201)
    (await api.create(PODS, unschedulable_pod(namespace, "q", restartPolicy="Never"))).expect(201)
    body = (await api.list(PODS, namespace, fieldSelector=selector)).expect(200)
    assert sorted(names(body)) == list(expected)


@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": "tier in front"},
        {"labelSelector": "a=b=c"},
        {"labelSelector": "not a key"},
        {"fieldSelector": "spec.size=3"},
        {"fieldSelector": "metadata.name"},
    ],
)
async def test_a_bad_selector_is_a_bad_request(api: Api, namespace: str, query: dict[str, str]) -> None:
    (await api.list(WIDGETS, namespace, **query)).refused(400, "BadRequest")


async def test_a_list_of_all_namespaces(api: Api, make: Maker) -> None:
    await make.widget("a")
    body = (await api.list(WIDGETS)).expect(200)
    assert (make.namespace, "a") in {
        (item["metadata"]["namespace"], item["metadata"]["name"]) for item in body["items"]
    }


async def test_a_list_of_a_namespace_that_is_not_there_is_empty(api: Api) -> None:
    assert (await api.list(WIDGETS, "nowhere")).expect(200)["items"] == []


async def test_items_are_in_order_of_name(api: Api, make: Maker) -> None:
    for name in ("c", "a", "b"):
        await make.widget(name)
    assert names((await api.list(WIDGETS, make.namespace)).body) == ["a", "b", "c"]


async def test_pages_add_up_to_what_was_there_at_the_first(api: Api, make: Maker) -> None:
    for index in range(7):
        await make.widget(f"w{index}")
    first = (await api.list(WIDGETS, make.namespace, limit="3")).expect(200)
    assert first["metadata"]["remainingItemCount"] == 4
    await make.widget("w9")
    await api.delete(WIDGETS, make.namespace, "w6")
    pages = [first]
    while token := pages[-1]["metadata"].get("continue"):
        page = await api.list(WIDGETS, make.namespace, limit="3", **{"continue": token})
        pages.append(page.expect(200))
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert [name for page in pages for name in names(page)] == [f"w{index}" for index in range(7)]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1


async def test_pages_of_selected_items_do_not_count_the_rest(api: Api, make: Maker) -> None:
    for index in range(6):
        await make.widget(f"w{index}", labels={"odd": str(index % 2)})
    page = (await api.list(WIDGETS, make.namespace, limit="2", labelSelector="odd=1")).expect(200)
    assert names(page) == ["w1", "w3"]
    assert "remainingItemCount" not in page["metadata"]
    token = page["metadata"]["continue"]
    rest = await api.list(WIDGETS, make.namespace, limit="2", labelSelector="odd=1", **{"continue": token})
    assert names(rest.expect(200)) == ["w5"]
    assert rest.body["metadata"]["continue"] == ""


async def test_a_list_that_fits_has_no_continuation(api: Api, make: Maker) -> None:
    await three(make)
    metadata = (await api.list(WIDGETS, make.namespace, limit="3")).expect(200)["metadata"]
    assert metadata["continue"] == ""
    assert "remainingItemCount" not in metadata


async def test_a_bad_continuation_is_a_bad_request(api: Api, namespace: str) -> None:
    reply = await api.list(WIDGETS, namespace, limit="3", **{"continue": "bogus"})
    reply.refused(400, "BadRequest")


@pytest.mark.parametrize("query", [{"resourceVersion": "0"}, {"resourceVersionMatch": "NotOlderThan"}])
async def test_a_list_may_ask_how_fresh_it_must_be(api: Api, make: Maker, query: dict[str, str]) -> None:
    made = await make.widget("a")
    if "resourceVersionMatch" in query:
        query = {**query, "resourceVersion": made["metadata"]["resourceVersion"]}
        assert names((await api.list(WIDGETS, make.namespace, **query)).expect(200)) == ["a"]
    else:
        (await api.list(WIDGETS, make.namespace, **query)).expect(200)


async def test_kubectl_selects(kubectl: Kubectl, make: Maker) -> None:
    await three(make)

    async def found(*arguments: str) -> list[str]:
        output = await kubectl.run("get", WG, "-o", "name", *arguments, namespace=make.namespace)
        return [line.rpartition("/")[2] for line in output.lines]

    assert await found("-l", "tier in (front,back)") == ["a", "b"]
    assert await found("-l", "!tier") == ["c"]
    assert await found("--field-selector", "metadata.name=b") == ["b"]
    assert await found("--chunk-size=1") == ["a", "b", "c"]


async def test_kubectl_shows_label_columns(kubectl: Kubectl, make: Maker) -> None:
    await three(make)
    output = await kubectl.run("get", WG, "-L", "tier", namespace=make.namespace)
    assert output.lines[0].split()[-1] == "TIER"
    assert output.lines[1].split()[-1] == "front"
