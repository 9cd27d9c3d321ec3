"""Lists: selectors by label and by field, and pages that add up to one consistent whole."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .rawapi import Api, names
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def three(make: Maker) -> None:
    await make.widget("a", labels={"tier": "front", "zone": "x"})
    await make.widget("b", {"color": "blue"}, labels={"tier": "back"})
    await make.widget("c")


async def test_field_selectors(api: Api, make: Maker) -> None:
    await three(make)
    for selector, expected in (
        ("metadata.name=a", "a"),
        ("spec.color!=blue,metadata.name!=c", "a"),
        ("metadata.namespace=elsewhere", ""),
    ):
        body = (await api.list(WIDGETS, make.namespace, fieldSelector=selector)).expect(200)
        assert sorted(names(body)) == list(expected), selector


async def test_a_list_of_all_namespaces(api: Api, make: Maker) -> None:
    await make.widget("a")
    body = (await api.list(WIDGETS)).expect(200)
    assert (make.namespace, "a") in {
        (item["metadata"]["namespace"], item["metadata"]["name"]) for item in body["items"]
    }


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
