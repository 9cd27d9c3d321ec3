"""What is refused in a CustomResourceDefinition, with the path, the reason and the words of Kubernetes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from localcluster.builtin import components
from localcluster.crd_definition import check_definition

JSON = dict[str, Any]

SCHEMA = "spec.validation.openAPIV3Schema"
FIELD = f"{SCHEMA}.properties[spec].properties[f]"
RULE = f"{FIELD}.x-kubernetes-validations[0]"
STRING = {"type": "string"}
INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
WRONG_TYPE = "FieldValueTypeInvalid"
KEYED = {"type": "object", "properties": {"name": STRING}}
THINGS = {
    "type": "object",
    "properties": {
        "a": STRING,
        "list": {"type": "array", "items": KEYED},
        "map": {"type": "object", "additionalProperties": KEYED},
        "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


def definition(**version: Any) -> JSON:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": STRING}}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        **version,
    }
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def with_field(**schema: Any) -> JSON:
    spec = {"type": "object", "properties": {"f": schema}}
    return definition(schema={"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}})


def with_rule(rule: str, schema: JSON = THINGS, **more: Any) -> JSON:
    return with_field(**schema, **{"x-kubernetes-validations": [{"rule": rule, **more}]})


def with_two_versions(**second: Any) -> JSON:
    changed = definition()
    versions = changed["spec"]["versions"]
    versions.append({**copy.deepcopy(versions[0]), "name": "v2", "storage": False, **second})
    return changed


def causes(mistaken: JSON) -> list[JSON]:
    return [fault.cause() for fault in check_definition(mistaken, components())]


UNTYPED = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"description": "untyped"}}}}
MISTAKES: dict[str, tuple[JSON, str, str]] = {
    "name": (definition() | {"metadata": {"name": "x.example.com"}}, "metadata.name", INVALID),
    "no storage version": (definition(storage=False), "spec.versions", INVALID),
    "two storage versions": (with_two_versions(storage=True), "spec.versions", INVALID),
    "same version twice": (with_two_versions(name="v1"), "spec.versions", INVALID),
    "no schema": (definition(schema={}), "spec.versions[0].schema.openAPIV3Schema", REQUIRED),
    "schema of one version of two": (
        with_two_versions(schema=UNTYPED),
        "spec.versions[1].schema.openAPIV3Schema.properties[spec].type",
        REQUIRED,
    ),
    "scale outside of spec": (
        definition(
            subresources={"scale": {"specReplicasPath": ".n", "statusReplicasPath": ".status.replicas"}}
        ),
        "spec.versions[0].subresources.scale.specReplicasPath",
        INVALID,
    ),
    "no type": (with_field(description="?"), f"{FIELD}.type", REQUIRED),
    "list of anything": (with_field(type="array"), f"{FIELD}.items", REQUIRED),
    "reference": (with_field(type="object", **{"$ref": "#/x"}), f"{FIELD}.$ref", FORBIDDEN),
    "properties and additionalProperties": (
        with_field(type="object", properties={"a": STRING}, additionalProperties=STRING),
        f"{FIELD}.additionalProperties",
        FORBIDDEN,
    ),
    "pattern that looks ahead": (with_field(type="string", pattern="(?=a)b"), f"{FIELD}.pattern", INVALID),
    "map without keys": (
        with_field(type="array", items=KEYED, **{"x-kubernetes-list-type": "map"}),
        f"{FIELD}.x-kubernetes-list-map-keys",
        REQUIRED,
    ),
    "default of the wrong type": (with_field(type="integer", default="x"), f"{FIELD}.default", WRONG_TYPE),
    "default with an unknown field": (
        with_field(type="object", properties={"a": STRING}, default={"b": "x"}),
        f"{FIELD}.default",
        INVALID,
    ),
    "default that lacks what its own default adds": (
        with_field(type="object", properties={"a": {**STRING, "default": "x"}}, required=["a"], default={}),
        f"{FIELD}.default.a",
        REQUIRED,
    ),
    "default of a list's items": (
        with_field(type="array", items={"type": "integer", "default": "x"}),
        f"{FIELD}.items.default",
        WRONG_TYPE,
    ),
    "default against a rule inside": (
        with_field(
            type="object",
            properties={"a": {**STRING, "x-kubernetes-validations": [{"rule": "self != 'x'"}]}},
            default={"a": "x"},
        ),
        f"{FIELD}.default.a",
        INVALID,
    ),
    "default that no change could keep": (
        with_field(type="integer", default=1, **{"x-kubernetes-validations": [{"rule": "self > oldSelf"}]}),
        f"{FIELD}.default",
        INVALID,
    ),
    "no rule": (with_rule(""), f"{RULE}.rule", REQUIRED),
    "rule on data without a schema": (
        with_rule("true", {"x-kubernetes-preserve-unknown-fields": True}),
        RULE,
        INVALID,
    ),
    "rule's field": (with_rule("self.a != 'x'", fieldPath=".x"), f"{RULE}.fieldPath", INVALID),
    "message expression": (
        with_rule("self.a != 'x'", messageExpression="self.list"),
        f"{RULE}.messageExpression",
        INVALID,
    ),
    "old self in a list": (
        with_field(
            type="array",
            items={**KEYED, "x-kubernetes-validations": [{"rule": "self.name == oldSelf.name"}]},
        ),
        f"{FIELD}.items.x-kubernetes-validations[0].rule",
        INVALID,
    ),
}


@pytest.mark.parametrize(("mistaken", "path", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_with_its_path_and_reason(mistaken: JSON, path: str, reason: str) -> None:
    assert (path, reason) in [(cause["field"], cause["reason"]) for cause in causes(mistaken)]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("self.a ==", "compilation failed"),
        ("self.b == 'x'", "undefined field 'b'"),
        ("self.a.c == 'x'", "does not support field selection"),
        ("self.list.all(x, x.wrong == 1)", "undefined field 'wrong'"),
        ("self.list.filter(x, x.name == 'a')[0].wrong == 1", "undefined field 'wrong'"),
        ("self.list.map(x, x.name) == [1]", "no matching overload"),
        ("self.list.exists(x, x.name)", "expected type 'bool' but found 'string'"),
        ("self.a.all(x, true)", "cannot be range of a comprehension"),
        ("self.map.all(k, self.map[k].wrong == 1)", "undefined field 'wrong'"),
        ("self.map.all(k, k.wrong == 1)", "does not support field selection"),
        ("foo(self.a)", "undeclared reference to 'foo'"),
        ("request.a == 1", "undeclared reference to 'request'"),
        ("self.template.spec == 1", "undefined field 'spec'"),
        ("self.a == 1", "no matching overload for '_==_'"),
        ("size(self.list) * 2.0 > 1", "no matching overload for '_*_'"),
        ("self.a.matches('(')", "invalid matches argument"),
        ("self.a + 'x'", "must evaluate to a bool"),
    ],
)
def test_a_rule_that_does_not_compile_is_refused(rule: str, words: str) -> None:
    (cause,) = causes(with_rule(rule))
    assert cause["field"] == f"{RULE}.rule" and words in cause["message"]


@pytest.mark.parametrize(
    "rule",
    [
        "self.map.all(k, k == 'a' || self.map[k].name == 'x')",
        "self.map.all(k, k in ['a', 'b'] && size(self.map[k].name) < 3)",
        "self.list[size(self.list) - 1].name == 'x' && self.map['a'].name == self.list[0].name",
        "self.list.map(x, x.name != '', x.name).exists_one(n, n == 'a')",
        "[].all(x, x == 1) && self.list.filter(x, has(x.name)).size() > 1",
    ],
)
def test_a_good_rule_is_taken(rule: str) -> None:
    assert causes(with_rule(rule)) == []


def test_what_is_right_is_taken() -> None:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    item = {**KEYED, "x-kubernetes-validations": [{"rule": "self.name == oldSelf.name"}]}
    either = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    for good in (definition(), with_field(type="array", items=item, **keyed), with_field(**either)):
        assert causes(good) == []


def test_a_default_against_its_rule_is_refused_with_the_rule_s_words() -> None:
    rules = [{"rule": "self.min <= self.max"}, {"rule": "has(self.name)", "message": "say the name"}]
    integer = {"type": "integer", "default": 0}
    schema = {"type": "object", "properties": {"min": integer, "max": integer, "name": STRING}, "default": {}}
    found = causes(with_field(**schema, **{"x-kubernetes-validations": rules}))
    assert [cause["message"] for cause in found] == [
        'Invalid value: "object": no such key: min evaluating rule: self.min <= self.max',
        "Invalid value: say the name",
    ]
