"""What a CRD's schema makes of its objects: defaults, pruning, refusals with paths, and CEL rules."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .objects import DEFAULT_SIZE, MAX_SIZE, widget
from .rawapi import (
    RULES_NOT_CHECKED,
    Api,
    causes,
)
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def refused(api: Api, namespace: str, spec: JSON) -> JSON:
    return (await api.create(WIDGETS, widget(namespace, "w", spec))).refused(422, "Invalid")


async def test_defaults_are_filled_in_at_every_depth(make: Maker) -> None:
    spec = (await make.widget("w", {"parts": [{"name": "a"}]}))["spec"]
    assert (spec["size"], spec["color"], spec["replicas"]) == (DEFAULT_SIZE, "red", 1)
    assert spec["limits"] == {"cpu": "1"}
    assert spec["parts"] == [{"name": "a", "count": 1}]
    assert "min" not in spec


async def test_defaults_do_not_override(make: Maker) -> None:
    spec = (await make.widget("w", {"size": 9, "limits": {"cpu": "2", "memory": "1Gi"}}))["spec"]
    assert spec["size"] == 9
    assert spec["limits"] == {"cpu": "2", "memory": "1Gi"}


async def test_null_means_default_unless_the_field_is_nullable(make: Maker) -> None:
    spec = (await make.widget("w", {"size": None, "note": None}))["spec"]
    assert spec["size"] == DEFAULT_SIZE
    assert spec["note"] is None


async def test_a_default_comes_back_when_its_field_is_taken_away(api: Api, make: Maker) -> None:
    await make.widget("w", {"size": 9})
    reply = await api.patch(WIDGETS, make.namespace, "w", {"spec": {"size": None}})
    assert reply.expect(200)["spec"]["size"] == DEFAULT_SIZE


async def test_unknown_fields_are_pruned_at_every_depth(api: Api, namespace: str) -> None:
    obj = widget(
        namespace,
        "w",
        {"bogus": 1, "limits": {"odd": 2}, "parts": [{"name": "a", "odd": 3}], "extra": {"kept": {"x": 4}}},
    )
    obj["odd"] = 5
    body = (await api.create(WIDGETS, obj, fieldValidation="Ignore")).expect(201)
    assert body["spec"]["limits"] == {"cpu": "1"}
    assert body["spec"]["parts"] == [{"name": "a", "count": 1}]
    assert body["spec"]["extra"] == {"kept": {"x": 4}}
    assert "bogus" not in body["spec"]
    assert "odd" not in body


@pytest.mark.parametrize("port", [80, "http", "80"])
async def test_int_or_string_takes_both(make: Maker, port: int | str) -> None:
    assert (await make.widget("w", {"port": port}))["spec"]["port"] == port


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"size": 0}, "spec.size", "FieldValueInvalid"),
        ({"size": MAX_SIZE + 1}, "spec.size", "FieldValueInvalid"),
        ({"ratio": 1.5}, "spec.ratio", "FieldValueInvalid"),
        ({"color": "pink"}, "spec.color", "FieldValueNotSupported"),
        ({"title": "Not Fine"}, "spec.title", "FieldValueInvalid"),
        ({"title": "a" * 21}, "spec.title", "FieldValueTooLong"),
        ({"tags": ["a"] * 2}, "spec.tags[1]", "FieldValueDuplicate"),
        ({"tags": list("abcdef")}, "spec.tags", "FieldValueTooMany"),
        ({"parts": [{"count": 2}]}, "spec.parts[0].name", "FieldValueRequired"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts[1]", "FieldValueDuplicate"),
        ({"attributes": {c: "1" for c in "abcdef"}}, "spec.attributes", "FieldValueTooMany"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_value_is_refused_with_path_and_reason(
    api: Api, namespace: str, spec: JSON, field: str, reason: str
) -> None:
    found = causes(await refused(api, namespace, spec))
    assert found.get(field) == reason


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size": "3"}, "spec.size"),
        ({"size": 1.5}, "spec.size"),
        ({"enabled": "yes"}, "spec.enabled"),
        ({"tags": "a"}, "spec.tags"),
        ({"tags": [1]}, "spec.tags[0]"),
        ({"limits": []}, "spec.limits"),
        ({"attributes": {"a": 1}}, "spec.attributes.a"),
        ({"port": True}, "spec.port"),
        ({"extra": "text"}, "spec.extra"),
        ({"startAt": "yesterday"}, "spec.startAt"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_type_is_refused_with_its_path(
    api: Api, namespace: str, spec: JSON, field: str
) -> None:
    assert field in causes(await refused(api, namespace, spec))


async def test_a_missing_required_field_is_named(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w")
    del obj["spec"]
    status = (await api.create(WIDGETS, obj)).refused(422, "Invalid")
    assert causes(status)["spec"] == "FieldValueRequired"
    obj["spec"] = {"size": 3}
    status = (await api.create(WIDGETS, obj)).refused(422, "Invalid")
    assert causes(status)["spec.title"] == "FieldValueRequired"


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
    assert causes(reply.refused(422, "Invalid")) == {
        "status.conditions[0].status": "FieldValueNotSupported",
        **RULES_NOT_CHECKED,
    }
    odd = {"status": {"phase": "Running", "odd": 1}}
    body = (await api.patch(WIDGETS, make.namespace, "w", odd, sub="status")).expect(200)
    assert body["status"] == {"phase": "Running"}


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"min": 3, "max": 2}, "spec.max", "min must not exceed max"),
        ({"limit": "many"}, "spec.limit", "limit many is no number"),
        ({"parts": [{"name": "forbidden"}]}, "spec.parts", "no part is called forbidden"),
    ],
    ids=["field-path", "message-expression", "list"],
)
async def test_a_cel_rule_refuses_with_its_message(
    api: Api, namespace: str, spec: JSON, field: str, message: str
) -> None:
    status = await refused(api, namespace, spec)
    assert message in status["message"]
    assert causes(status) == {field: "FieldValueInvalid"}


async def test_a_cel_rule_accepts_what_satisfies_it(make: Maker) -> None:
    await make.widget("a", {"min": 2, "max": 3, "limit": "10", "parts": [{"name": "fine"}]})
    await make.widget("b", {"min": 5})


async def test_a_rule_at_the_root_sees_the_name(api: Api, namespace: str) -> None:
    status = (await api.create(WIDGETS, widget(namespace, "w" * 41))).refused(422, "Invalid")
    assert "the name is longer than 40 characters" in status["message"]


async def test_a_transition_rule_compares_with_the_old_object(api: Api, make: Maker) -> None:
    await make.widget("w", {"mode": "fast"})

    async def change(patch: JSON) -> Any:
        return await api.patch(WIDGETS, make.namespace, "w", {"spec": patch})

    assert "mode is immutable" in (await change({"mode": "slow"})).refused(422, "Invalid")["message"]
    assert "cannot be taken away" in (await change({"mode": None})).refused(422, "Invalid")["message"]
    (await change({"mode": "fast", "size": 8})).expect(200)


async def test_a_transition_rule_does_not_bind_the_first_value(api: Api, make: Maker) -> None:
    await make.widget()
    (await api.patch(WIDGETS, make.namespace, "w", {"spec": {"mode": "late"}})).expect(200)


async def test_a_transition_rule_in_a_map_list_goes_by_key(api: Api, make: Maker) -> None:
    await make.widget("w", {"parts": [{"name": "a", "count": 5}, {"name": "b", "count": 1}]})
    swapped = {"spec": {"parts": [{"name": "b", "count": 1}, {"name": "a", "count": 6}]}}
    (await api.patch(WIDGETS, make.namespace, "w", swapped)).expect(200)
    shrunk = {"spec": {"parts": [{"name": "b", "count": 1}, {"name": "a", "count": 2}]}}
    reply = await api.patch(WIDGETS, make.namespace, "w", shrunk)
    assert "a part never shrinks" in reply.refused(422, "Invalid")["message"]


async def test_a_transition_rule_guards_status(api: Api, make: Maker) -> None:
    await make.widget()
    for round_number, status in ((3, 200), (2, 422), (4, 200)):
        patch = {"status": {"round": round_number}}
        reply = await api.patch(WIDGETS, make.namespace, "w", patch, sub="status")
        assert reply.status == status, reply.text


async def test_a_dry_run_checks_cel_too(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w", {"min": 3, "max": 2})
    (await api.create(WIDGETS, obj, dryRun="All")).refused(422, "Invalid")
