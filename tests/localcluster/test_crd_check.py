"""What is refused in a CRD's schema, as a real API server refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from localcluster.builtin import components
from localcluster.crd_check import check_crd_schema

CRD_FILES = sorted((Path(__file__).parents[2] / "crds" / "yaml").glob("*.yaml"))
STRING = {"type": "string"}
THING = {"type": "object", "properties": {"ok": {"type": "string", "maxLength": 9}}}


def root(**spec) -> dict:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}


def ruled(rule: str, **properties) -> dict:
    schema = root(**properties)
    schema["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": rule, "message": "m"}]
    return schema


def faults(schema: dict) -> list[str]:
    return [str(fault) for fault in check_crd_schema(schema, components(), "s")]


@pytest.mark.parametrize("path", CRD_FILES, ids=lambda path: path.stem)
def test_shipped_definitions_are_accepted(path: Path) -> None:
    definition = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        assert faults(version["schema"]["openAPIV3Schema"]) == []


@pytest.mark.parametrize(
    ("field", "where", "words"),
    [
        ({}, ".type", "must not be empty for specified object fields"),
        ({"type": "text"}, ".type", "Unsupported value"),
        ({"$ref": "#/x", "type": "object"}, ".$ref", "is not supported"),
        ({"type": "array"}, ".items", "must be specified"),
        ({"type": "array", "items": {}}, ".items.type", "must not be empty for specified array items"),
        (
            {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
            ".additionalProperties",
            "mutual exclusive",
        ),
        ({"type": "object", "additionalProperties": False}, ".additionalProperties", "set to false"),
        ({"type": "array", "items": STRING, "uniqueItems": True}, ".uniqueItems", "quadratic"),
        ({"type": "string", "x-kubernetes-int-or-string": True}, ".type", "must be empty"),
        ({"type": "string", "pattern": "(?=a)"}, ".pattern", "regular expression"),
        ({"type": "string", "pattern": "("}, ".pattern", "regular expression"),
        ({"type": "object", "anyOf": [{"type": "string"}]}, ".anyOf[0].type", "to be structural"),
        ({"type": "object", "not": {"nullable": True}}, ".not.nullable", "to be structural"),
        ({"type": "integer", "default": "x"}, ".default", "must be of type integer"),
        (
            {"type": "object", "properties": {"a": STRING}, "default": {"b": "x"}},
            ".default",
            "must not have unknown fields",
        ),
        (
            {"type": "array", "items": STRING, "x-kubernetes-list-type": "map"},
            ".x-kubernetes-list-map-keys",
            "must not be empty",
        ),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"name": STRING}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            ".items.properties[name].default",
            "must have a default or be a required property",
        ),
        ({"type": "string", "x-kubernetes-list-type": "set"}, ".type", "must be array"),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, ".properties", "must not be empty"),
    ],
)
def test_unstructural_field_is_refused_with_its_path(field: dict, where: str, words: str) -> None:
    found = faults(root(f=field))
    assert any(
        fault.startswith(f"s.properties[spec].properties[f]{where}: ") and words in fault for fault in found
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": STRING}, "must be object at the root"),
        ({"properties": {}}, "must not be empty at the root"),
        ({"type": "object", "additionalProperties": STRING}, "must not be used at the root"),
        (
            {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {}}}}},
            "must not specify anything other than name and generateName",
        ),
    ],
)
def test_unstructural_root_is_refused(schema: dict, words: str) -> None:
    assert any(words in fault for fault in faults(schema))


def test_int_or_string_and_name_restrictions_are_structural() -> None:
    schema = root(
        a={"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        b={"x-kubernetes-preserve-unknown-fields": True},
    )
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}},
    }
    assert faults(schema) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("self.a ==", "compilation failed"),
        ("self.b == 'x'", "undefined field 'b'"),
        ("self.a.c == 'x'", "does not support field selection"),
        ("self.list.all(x, x.wrong == 1)", "undefined field 'wrong'"),
        ("self.list[0].wrong == 1", "undefined field 'wrong'"),
        ("self.map.all(k, self.map[k].wrong == 1)", "undefined field 'wrong'"),
        ("self.map.all(k, k.wrong == 1)", "does not support field selection"),
        ("foo(self.a)", "undeclared reference to 'foo'"),
        ("request.a == 1", "undeclared reference to 'request'"),
        ("self.template.spec == 1", "undefined field 'spec'"),
        ("", "rule is not specified"),
    ],
)
def test_rule_that_does_not_compile_is_refused(rule: str, words: str) -> None:
    schema = ruled(
        rule,
        a=STRING,
        list={"type": "array", "maxItems": 9, "items": {"type": "object", "properties": {"ok": STRING}}},
        map={"type": "object", "maxProperties": 9, "additionalProperties": THING},
        template={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    )
    found = faults(schema)
    assert len(found) == 1 and words in found[0]
    assert found[0].startswith("s.properties[spec].x-kubernetes-validations[0].rule: ")


@pytest.mark.parametrize(
    "rule",
    [
        "self.map.all(k, k == 'a' || self.map[k].ok == 'x')",
        "self.map.all(k, k in ['a', 'b'] && size(self.map[k].ok) < 3)",
        "self.list[size(self.list) - 1].ok == 'x' && self.map['a'].ok == self.list[0].ok",
    ],
)
def test_a_rule_may_look_at_what_an_index_picks(rule: str) -> None:
    items = {"type": "array", "maxItems": 9, "items": THING}
    values = {"type": "object", "maxProperties": 9, "additionalProperties": THING}
    assert faults(ruled(rule, list=items, map=values)) == []


LIST_OF_STRINGS = {"type": "array", "items": STRING}


@pytest.mark.parametrize(
    ("rule", "unlimited", "limits"),
    [
        (
            "self.f.all(x, x.contains('a'))",
            LIST_OF_STRINGS,
            {"maxItems": 64, "items": {**STRING, "maxLength": 63}},
        ),
        (
            "self.f.all(x, self.f.exists(y, x != y))",
            LIST_OF_STRINGS,
            {"maxItems": 64, "items": {**STRING, "maxLength": 9}},
        ),
        (
            " && ".join(3 * [f"self.f.matches('{60 * 'a'}')"]),
            STRING,
            {"maxLength": 63},
        ),
        (
            "self.f.all(k, self.f[k].all(x, x.contains('a')))",
            {"type": "object", "additionalProperties": LIST_OF_STRINGS},
            {
                "maxProperties": 8,
                "additionalProperties": {
                    **LIST_OF_STRINGS,
                    "maxItems": 8,
                    "items": {**STRING, "maxLength": 63},
                },
            },
        ),
    ],
)
def test_rule_over_unlimited_values_is_too_expensive_until_they_are_limited(rule, unlimited, limits) -> None:
    assert "exceeds budget by factor of" in faults(ruled(rule, f=unlimited))[0]
    assert faults(ruled(rule, f={**unlimited, **limits})) == []


def test_rule_of_an_unlimited_lists_items_counts_as_often_as_they_can_be() -> None:
    item = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.a.contains('x')", "message": "m"}],
    }
    assert "exceeds budget" in faults(root(f={"type": "array", "items": item}))[0]
    item["properties"]["a"]["maxLength"] = 63
    assert faults(root(f={"type": "array", "maxItems": 64, "items": item})) == []


def test_many_affordable_rules_may_be_too_expensive_together() -> None:
    fields = {
        f"f{index}": {
            **LIST_OF_STRINGS,
            "maxItems": 20,
            "x-kubernetes-validations": [{"rule": "self.all(x, x.contains('a'))", "message": "m"}],
        }
        for index in range(20)
    }
    found = faults(root(**fields))
    *contributions, total = found
    assert len(contributions) == 4
    assert all("Forbidden: contributed to estimated rule cost total" in fault for fault in contributions)
    assert "rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 1.258" in total


@pytest.mark.parametrize(
    ("rule", "where", "words"),
    [
        ({"rule": "self.a == 'x'", "reason": "Because"}, "reason", "Unsupported value"),
        ({"rule": "self.a == 'x'", "fieldPath": ".b"}, "fieldPath", "must be a valid path"),
        ({"rule": "self.a == 'x'", "fieldPath": "a[0]"}, "fieldPath", "must be a valid path"),
        ({"rule": "self.a\n== 'x'"}, "message", "must be specified if rule contains line breaks"),
        ({"rule": "self.a == 'x'", "message": "a\nb"}, "message", "must not contain line breaks"),
        ({"rule": "self.a == 'x'", "optionalOldSelf": True}, "optionalOldSelf", "oldSelf is not used"),
        ({"rule": "self.a == 'x'", "messageExpression": "nope("}, "messageExpression", "compilation failed"),
    ],
)
def test_badly_formed_rule_is_refused(rule: dict, where: str, words: str) -> None:
    schema = root(a={"type": "string", "maxLength": 9})
    schema["properties"]["spec"]["x-kubernetes-validations"] = [rule]
    found = faults(schema)
    assert any(
        fault.startswith(f"s.properties[spec].x-kubernetes-validations[0].{where}: ") for fault in found
    )
    assert any(words in fault for fault in found)


def test_transition_rule_needs_values_that_can_be_matched_with_their_old_ones() -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    item["x-kubernetes-validations"] = [{"rule": "self.a == oldSelf.a", "message": "m"}]
    assert "uncorrelatable" in faults(root(f={"type": "array", "maxItems": 9, "items": item}))[0]
    item["required"] = ["a"]
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}
    assert faults(root(f={"type": "array", "maxItems": 9, "items": item, **keyed})) == []
