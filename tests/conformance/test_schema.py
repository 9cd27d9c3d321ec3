"""What a CRD's schema makes of its objects, as a client sees it: defaults, pruning, refusals with paths, rules."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .objects import DEFAULT_SIZE, MAX_SIZE, widget
from .rawapi import RULES_NOT_CHECKED, Api, causes
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


async def test_defaults_are_filled_in_at_every_depth_and_override_nothing(api: Api, make: Maker) -> None:
    spec = (await make.widget("w", {"parts": [{"name": "a"}], "size": None, "note": None}))["spec"]
    assert (spec["size"], spec["color"], spec["replicas"], spec["note"]) == (DEFAULT_SIZE, "red", 1, None)
    assert (spec["limits"], spec["parts"]) == ({"cpu": "1"}, [{"name": "a", "count": 1}])
    assert "min" not in spec
    given = {"size": 9, "limits": {"cpu": "2", "memory": "1Gi"}, "port": "http"}
    assert given.items() <= (await make.widget("v", given))["spec"].items()
    reply = await api.patch(WIDGETS, make.namespace, "v", {"spec": {"size": None, "port": 80}})
    assert (reply.expect(200)["spec"]["size"], reply.body["spec"]["port"]) == (DEFAULT_SIZE, 80)


async def test_unknown_fields_are_pruned_at_every_depth(api: Api, namespace: str) -> None:
    spec = {"bogus": 1, "limits": {"odd": 2}, "parts": [{"name": "a", "odd": 3}], "extra": {"kept": {"x": 4}}}
    obj = widget(namespace, "w", spec) | {"odd": 5}
    body = (await api.create(WIDGETS, obj, fieldValidation="Ignore")).expect(201)
    assert body["spec"]["limits"] == {"cpu": "1"}
    assert body["spec"]["parts"] == [{"name": "a", "count": 1}]
    assert body["spec"]["extra"] == {"kept": {"x": 4}}
    assert "bogus" not in body["spec"] and "odd" not in body


async def test_a_wrong_value_is_refused_with_path_and_reason(api: Api, namespace: str) -> None:
    for spec, field, reason in REFUSED:
        found = causes(await refused(api, namespace, spec))
        assert field in found, (spec, found)
        assert not reason or found[field] == reason, (spec, found)


async def test_a_missing_required_field_is_named(api: Api, namespace: str) -> None:
    for spec, field in (({}, "spec"), ({"spec": {"size": 3}}, "spec.title")):
        obj = {key: each for key, each in widget(namespace, "w").items() if key != "spec"} | spec
        status = (await api.create(WIDGETS, obj)).refused(422, "Invalid")
        assert causes(status)[field] == REQUIRED


async def test_an_invalid_object_is_named_with_all_that_is_wrong(api: Api, namespace: str) -> None:
    status = await refused(api, namespace, {"size": 0, "color": "pink"})
    assert status["message"].startswith(f'{WIDGETS.kind}.{WIDGETS.group} "w" is invalid: [')
    assert 'spec.color: Unsupported value: "pink": supported values: "' in status["message"]
    details = status["details"]
    assert (details["name"], details["group"], details["kind"]) == ("w", WIDGETS.group, WIDGETS.kind)
    assert {"spec.size", "spec.color"} <= set(causes(status))


async def test_status_is_validated_and_pruned_too(api: Api, make: Maker) -> None:
    await make.widget()
    bad = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
    reply = await api.patch(WIDGETS, make.namespace, "w", bad, sub="status")
    wanted = {"status.conditions[0].status": NOT_SUPPORTED, **RULES_NOT_CHECKED}
    assert causes(reply.refused(422, "Invalid")) == wanted
    odd = {"status": {"phase": "Running", "odd": 1}}
    body = (await api.patch(WIDGETS, make.namespace, "w", odd, sub="status")).expect(200)
    assert body["status"] == {"phase": "Running"}


async def test_a_rule_refuses_with_its_message(api: Api, namespace: str, make: Maker) -> None:
    for spec, field, message in (
        ({"min": 3, "max": 2}, "spec.max", "min must not exceed max"),
        ({"limit": "many"}, "spec.limit", "limit many is no number"),
        ({"parts": [{"name": "forbidden"}]}, "spec.parts", "no part is called forbidden"),
    ):
        status = await refused(api, namespace, spec)
        assert message in status["message"]
        assert causes(status) == {field: INVALID}
    dry = await api.create(WIDGETS, widget(namespace, "w", {"min": 3, "max": 2}), dryRun="All")
    dry.refused(422, "Invalid")
    status = (await api.create(WIDGETS, widget(namespace, "w" * 41))).refused(422, "Invalid")
    assert "the name is longer than 40 characters" in status["message"]
    await make.widget("fine", {"min": 2, "max": 3, "limit": "10", "parts": [{"name": "fine"}]})


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
