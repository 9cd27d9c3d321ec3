"""Applies, and managedFields that clients write themselves, by which somebody means ill."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.localcluster.apiserver.api import CONFIG_MAPS, CRDS, MERGE, Api, config_map
from tests.localcluster.apiserver.test_deep_objects import BAGS, bag_definition

pytestmark = pytest.mark.real

APPLY = "application/apply-patch+yaml"
ENTRY = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"f:a": value}
    return value


@pytest.mark.parametrize(
    "owners",
    [
        1,
        "x",
        {"a": 1},
        [1],
        ["x"],
        [None],
        [{}],
        [{}, {}],
        [{"manager": 5}],
        [ENTRY | {"manager": None}],
        [ENTRY | {"operation": "Steal"}],
        [ENTRY | {"fieldsV1": 5}],
        [ENTRY | {"fieldsV1": {"f:data": 5}}],
        [ENTRY | {"fieldsV1": {"f:data": {"k:{": {}}}}],
        [ENTRY | {"fieldsV1": {"f:data": {"k:5": {}, "v:[": {}, "q": {}}}}],
        [ENTRY | {"fieldsV1": nested(100)}],
        [ENTRY | {"subresource": 5}],
        [ENTRY | {"time": 5}],
        [{key: value for key, value in ENTRY.items() if key != "fieldsV1"}],
    ],
    ids=lambda owners: json.dumps(owners)[:60],
)
async def test_managed_fields_of_any_form_are_kept_or_refused_and_applies_go_on(
    api: Api, owners: Any
) -> None:
    one = f"{CONFIG_MAPS}/one"
    applied = await api.patch(one, config_map("one"), APPLY, fieldManager="a")
    assert applied.code == 201
    body = {"metadata": {"managedFields": owners}, "data": {"a": "c"}}
    written = await api.patch(one, body, MERGE)
    assert written.code in (200, 400, 422), written.body
    replaced = await api.put(one, config_map("one", managedFields=owners))
    assert replaced.code in (200, 400, 422), replaced.body
    for manager, force in (("b", "false"), ("b", "true"), ("a", "true")):
        again = await api.patch(
            one, config_map("one") | {"data": {"a": manager}}, APPLY, fieldManager=manager, force=force
        )
        assert again.code in (200, 409), again.body
    assert (await api.get(one)).body["data"] == {"a": "a"}


async def test_applies_of_odd_bodies_are_answered(api: Api) -> None:
    await api.created(CRDS, bag_definition())
    odd: list[bytes] = [b"", b"[]", b"5", b"{", b"\x00", b"a: &a [*a]", b"metadata: 5", b"{}", b"null"]
    bag = {"apiVersion": "example.com/v1", "kind": "Bag", "metadata": {"name": "one"}}
    deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    head = b'{"apiVersion":"example.com/v1","kind":"Bag","metadata":{"name":"one"},"spec":'
    odd += [head + deep + b"}", head + b"[" * 300 + b"]" * 300 + b"}"]
    odd += [json.dumps(bag | {"spec": spec}).encode() for spec in (5, [], "x", {"size": {}}, {"size": None})]
    odd += [
        json.dumps(bag | {"metadata": {"name": "one", "labels": each}}).encode()
        for each in (5, [1], {"a": 1})
    ]
    for body in odd:
        for _ in range(2):
            answer = await api.patch(f"{BAGS}/one", body, APPLY, fieldManager="x", force="true")
            assert answer.code < 500, (body[:90], answer.content[:300])
    pod = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":%s}}'
    for containers in (
        b"5",
        b"[5]",
        b'["x"]',
        b'[{"name":5}]',
        b'[{"name":{"a":1}}]',
        b"[[]]",
        b'[{"a":1}]',
        b"[{}]",
    ):
        answer = await api.patch(
            "/api/v1/namespaces/default/pods/p", pod % containers, APPLY, fieldManager="x"
        )
        assert answer.code < 500 or "failed to create typed patch object" in answer.message, containers
