"""What a CRD's schema makes of its objects, as a client sees it: defaults, pruning, refusals with paths, rules."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .objects import MAX_SIZE, widget
from .rawapi import Api, causes
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]
INVALID, TOO_MANY, DUPLICATE = "FieldValueInvalid", "FieldValueTooMany", "FieldValueDuplicate"
WRONG_TYPE, NOT_SUPPORTED, REQUIRED = "FieldValueTypeInvalid", "FieldValueNotSupported", "FieldValueRequired"

REFUSED: list[tuple[JSON, str, str]] = [
    ({"size": 0}, "spec.size", INVALID),
    ({"size": MAX_SIZE + 1}, "spec.size", INVALID),
    ({"ratio": 1.5}, "spec.ratio", INVALID),
    ({"color": "pink"}, "spec.color", NOT_SUPPORTED),
    ({"title": "Not Fine"}, "spec.title", INVALID),
    ({"title": "a" * 21}, "spec.title", "FieldValueTooLong"),
    ({"tags": ["a"] * 2}, "spec.tags[1]", DUPLICATE),
    ({"tags": list("abcdef")}, "spec.tags", TOO_MANY),
    ({"parts": [{"count": 2}]}, "spec.parts[0].name", REQUIRED),
    ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]", DUPLICATE),
    ({"attributes": {c: "1" for c in "abcdef"}}, "spec.attributes", TOO_MANY),
    ({"size": "3"}, "spec.size", WRONG_TYPE),
    ({"enabled": "yes"}, "spec.enabled", WRONG_TYPE),
    ({"tags": [1]}, "spec.tags[0]", WRONG_TYPE),
    ({"limits": []}, "spec.limits", WRONG_TYPE),
    ({"attributes": {"a": 1}}, "spec.attributes.a", WRONG_TYPE),
    ({"port": True}, "spec.port", WRONG_TYPE),
    ({"startAt": "yesterday"}, "spec.startAt", ""),
]
"""Specs with the path and the reason of their refusal; an empty reason is not looked at."""


async def refused(api: Api, namespace: str, spec: JSON) -> JSON:
    return (await api.create(WIDGETS, widget(namespace, "w", spec))).refused(422, "Invalid")


async def test_a_wrong_value_is_refused_with_path_and_reason(api: Api, namespace: str) -> None:
    for spec, field, reason in REFUSED:
        found = causes(await refused(api, namespace, spec))
        assert field in found, (spec, found)
        assert not reason or found[field] == reason, (spec, found)


async def test_status_is_validated_and_pruned_too(api: Api, make: Maker) -> None:
    await make.widget()
    bad = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
    reply = await api.patch(WIDGETS, make.namespace, "w", bad, sub="status")
    assert causes(reply.refused(422, "Invalid"))["status.conditions[0].status"] == NOT_SUPPORTED
    odd = {"status": {"phase": "Running", "odd": 1}}
    body = (await api.patch(WIDGETS, make.namespace, "w", odd, sub="status")).expect(200)
    assert body["status"] == {"phase": "Running"}


async def test_a_transition_rule_compares_with_the_old_object(api: Api, make: Maker) -> None:
    await make.widget("w", {"parts": [{"name": "a", "count": 5}, {"name": "b", "count": 1}]})

    async def change(patch: JSON) -> Any:
        return await api.patch(WIDGETS, make.namespace, "w", {"spec": patch})

    (await change({"mode": "fast"})).expect(200)
    assert "mode is immutable" in (await change({"mode": "slow"})).refused(422, "Invalid")["message"]
    assert "cannot be taken away" in (await change({"mode": None})).refused(422, "Invalid")["message"]
    (await change({"mode": "fast", "size": 8})).expect(200)
    (await change({"parts": [{"name": "b", "count": 1}, {"name": "a", "count": 6}]})).expect(200)
    shrunk = await change({"parts": [{"name": "b", "count": 1}, {"name": "a", "count": 2}]})
    assert "a part never shrinks" in shrunk.refused(422, "Invalid")["message"]
    for round_number, status in ((3, 200), (2, 422), (4, 200)):
        patch = {"status": {"round": round_number}}
        reply = await api.patch(WIDGETS, make.namespace, "w", patch, sub="status")
        assert reply.status == status, reply.text
