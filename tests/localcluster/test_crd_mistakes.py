"""Mistakes in CustomResourceDefinitions, each refused with the path and the reason of Kubernetes 1.36."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from localcluster.builtin import components
from localcluster.crd_definition import check_definition

JSON = dict[str, Any]

SCHEMA = "spec.validation.openAPIV3Schema"
SPEC = f"{SCHEMA}.properties[spec]"
FIELD = f"{SPEC}.properties[f]"
RULE = f"{FIELD}.x-kubernetes-validations[0]"
TEXT = {"type": "string"}
SHORT = {"type": "string", "maxLength": 10}
INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
NOT_SUPPORTED = "FieldValueNotSupported"


def definition() -> JSON:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"f": dict(TEXT), "n": {"type": "integer"}}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def with_version(**changes: Any) -> JSON:
    changed = definition()
    changed["spec"]["versions"][0] |= changes
    return changed


def with_root(**changes: Any) -> JSON:
    changed = definition()
    changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"] |= changes
    return changed


def with_field(**schema: Any) -> JSON:
    changed = definition()
    spec = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["f"] = schema
    return changed


def with_rule(rule: str, schema: JSON = TEXT, **more: Any) -> JSON:
    return with_field(**schema, **{"x-kubernetes-validations": [{"rule": rule, **more}]})


def with_name(name: str, value: Any) -> JSON:
    changed = definition()
    changed["spec"]["names"][name] = value
    return changed


def with_two_versions(second: JSON) -> JSON:
    changed = definition()
    versions = changed["spec"]["versions"]
    versions.append({**copy.deepcopy(versions[0]), "name": "v2", "storage": False, **second})
    return changed


def in_group(group: str) -> JSON:
    changed = definition()
    changed["spec"]["group"] = group
    changed["metadata"]["name"] = f"things.{group}"
    return changed


OTHER_SCHEMA = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"description": "untyped"}}}}
KEYED = {"type": "object", "properties": {"name": TEXT}}
OLD_AND_NEW = {"rule": "self.name == oldSelf.name"}

MISTAKES: dict[str, tuple[JSON, str, str]] = {
    # The definition.
    "name": (definition() | {"metadata": {"name": "x.example.com"}}, "metadata.name", INVALID),
    "group without a dot": (in_group("example"), "spec.group", INVALID),
    "group's name": (in_group("Example.com"), "spec.group", INVALID),
    "protected group": (
        in_group("example.k8s.io"),
        "metadata.annotations[api-approved.kubernetes.io]",
        REQUIRED,
    ),
    "no storage version": (with_version(storage=False), "spec.versions", INVALID),
    "nothing stored": (with_version(storage=False), "status.storedVersions", INVALID),
    "two storage versions": (with_two_versions({"storage": True}), "spec.versions", INVALID),
    "same version twice": (with_two_versions({"name": "v1"}), "spec.versions", INVALID),
    "version's name": (with_version(name="1"), "spec.versions[0].name", INVALID),
    "kind's name": (with_name("kind", "Thi_ng"), "spec.names.kind", INVALID),
    "kind is list kind": (with_name("listKind", "Thing"), "spec.names.listKind", INVALID),
    "short name": (with_name("shortNames", ["TH"]), "spec.names.shortNames[0]", INVALID),
    "no schema": (with_version(schema={}), "spec.versions[0].schema.openAPIV3Schema", REQUIRED),
    "schema of one version of two": (
        with_two_versions({"schema": OTHER_SCHEMA}),
        "spec.versions[1].schema.openAPIV3Schema.properties[spec].type",
        REQUIRED,
    ),
    "deprecation of what is current": (
        with_version(deprecationWarning="old"),
        "spec.versions[0].deprecationWarning",
        INVALID,
    ),
    "scale outside of spec": (
        with_version(
            subresources={"scale": {"specReplicasPath": ".n", "statusReplicasPath": ".status.replicas"}}
        ),
        "spec.subresources.scale.specReplicasPath",
        INVALID,
    ),
    "column's type": (
        with_version(additionalPrinterColumns=[{"name": "a", "type": "text", "jsonPath": ".spec.f"}]),
        "spec.additionalPrinterColumns[0].type",
        INVALID,
    ),
    "column's path": (
        with_version(additionalPrinterColumns=[{"name": "a", "type": "string", "jsonPath": "spec.f"}]),
        "spec.additionalPrinterColumns[0].JSONPath",
        INVALID,
    ),
    "selectable field that is not there": (
        with_version(selectableFields=[{"jsonPath": ".spec.other"}]),
        "spec.selectableFields[0].jsonPath",
        INVALID,
    ),
    "selectable object": (
        with_version(selectableFields=[{"jsonPath": ".spec"}]),
        "spec.selectableFields[0].jsonPath",
        INVALID,
    ),
    # The schema.
    "no type": (with_field(description="?"), f"{FIELD}.type", REQUIRED),
    "unknown type": (with_field(type="text"), f"{FIELD}.type", NOT_SUPPORTED),
    "list of anything": (with_field(type="array"), f"{FIELD}.items", REQUIRED),
    "reference": (with_field(type="object", **{"$ref": "#/x"}), f"{FIELD}.$ref", FORBIDDEN),
    "properties and additionalProperties": (
        with_field(type="object", properties={"a": TEXT}, additionalProperties=TEXT),
        f"{FIELD}.additionalProperties",
        FORBIDDEN,
    ),
    "unique items": (
        with_field(type="array", items=TEXT, uniqueItems=True),
        f"{FIELD}.uniqueItems",
        FORBIDDEN,
    ),
    "pattern": (with_field(type="string", pattern="("), f"{FIELD}.pattern", INVALID),
    "pattern that looks ahead": (with_field(type="string", pattern="(?=a)b"), f"{FIELD}.pattern", INVALID),
    "pattern with a back reference": (
        with_field(type="string", pattern="(a)\\1"),
        f"{FIELD}.pattern",
        INVALID,
    ),
    "type in a junctor": (
        with_field(type="object", anyOf=[{"type": "object"}]),
        f"{FIELD}.anyOf[0].type",
        FORBIDDEN,
    ),
    "field in a junctor only": (
        with_field(type="object", properties={"a": TEXT}, anyOf=[{"properties": {"b": {"minLength": 1}}}]),
        f"{FIELD}.properties[b]",
        REQUIRED,
    ),
    "described metadata": (
        with_root(properties={"metadata": {"type": "object", "description": "?"}}),
        f"{SCHEMA}.properties[metadata]",
        FORBIDDEN,
    ),
    "default in metadata": (
        with_root(
            properties={
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}
            }
        ),
        f"{SCHEMA}.properties[metadata].properties[name].default",
        FORBIDDEN,
    ),
    "root that may be null": (with_root(nullable=True), f"{SCHEMA}.nullable", FORBIDDEN),
    "enumeration beside a status": (
        with_version(
            subresources={"status": {}},
            schema={"openAPIV3Schema": {"type": "object", "maxProperties": 3}},
        ),
        SCHEMA,
        INVALID,
    ),
    "unknown fields kept, or not": (
        with_field(type="object", **{"x-kubernetes-preserve-unknown-fields": False}),
        f"{FIELD}.x-kubernetes-preserve-unknown-fields",
        INVALID,
    ),
    "map without keys": (
        with_field(type="array", items=KEYED, **{"x-kubernetes-list-type": "map"}),
        f"{FIELD}.x-kubernetes-list-map-keys",
        REQUIRED,
    ),
    "key that may be absent": (
        with_field(
            type="array",
            items=KEYED,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        f"{FIELD}.items.properties[name].default",
        REQUIRED,
    ),
    "set of objects": (
        with_field(type="array", items=KEYED, **{"x-kubernetes-list-type": "set"}),
        f"{FIELD}.items.x-kubernetes-map-type",
        INVALID,
    ),
    "list type of a string": (
        with_field(type="string", **{"x-kubernetes-list-type": "set"}),
        f"{FIELD}.type",
        INVALID,
    ),
    # Defaults.
    "default of the wrong type": (
        with_field(type="integer", default="x"),
        f"{FIELD}.default",
        "FieldValueTypeInvalid",
    ),
    "default with an unknown field": (
        with_field(type="object", properties={"a": TEXT}, default={"b": "x"}),
        f"{FIELD}.default",
        INVALID,
    ),
    "default without a required field": (
        with_field(
            type="object", properties={"a": {"type": "string", "default": "x"}}, required=["a"], default={}
        ),
        f"{FIELD}.default.a",
        REQUIRED,
    ),
    "default against its rule": (
        with_field(
            type="object",
            properties={"a": SHORT, "b": SHORT},
            default={},
            **{"x-kubernetes-validations": [{"rule": "has(self.a) != has(self.b)", "message": "one"}]},
        ),
        f"{FIELD}.default",
        INVALID,
    ),
    "default that lacks what its rule reads": (
        with_field(
            type="object",
            properties={"min": {"type": "integer", "default": 0}, "max": {"type": "integer", "default": 5}},
            default={},
            **{"x-kubernetes-validations": [{"rule": "self.min <= self.max"}]},
        ),
        f"{FIELD}.default",
        INVALID,
    ),
    "default against a rule inside": (
        with_field(
            type="object",
            properties={"a": {**SHORT, "x-kubernetes-validations": [{"rule": "self != 'x'"}]}},
            default={"a": "x"},
        ),
        f"{FIELD}.default.a",
        INVALID,
    ),
    "default of a list's items": (
        with_field(type="array", items={"type": "integer", "default": "x"}),
        f"{FIELD}.items.default",
        "FieldValueTypeInvalid",
    ),
    "default that no change could keep": (
        with_field(type="integer", default=1, **{"x-kubernetes-validations": [{"rule": "self > oldSelf"}]}),
        f"{FIELD}.default",
        INVALID,
    ),
    # Rules.
    "no rule": (with_rule(""), f"{RULE}.rule", REQUIRED),
    "rule that ends early": (with_rule("self =="), f"{RULE}.rule", INVALID),
    "rule about an unknown field": (with_rule("self.x == 1", KEYED), f"{RULE}.rule", INVALID),
    "rule about an unknown variable": (with_rule("object == 'x'"), f"{RULE}.rule", INVALID),
    "rule with an unknown function": (with_rule("math.abs(1) == 1"), f"{RULE}.rule", INVALID),
    "rule that compares unlike things": (with_rule("self == 1", SHORT), f"{RULE}.rule", INVALID),
    "rule that adds unlike numbers": (
        with_rule("self * 2 > 1", {"type": "number"}),
        f"{RULE}.rule",
        INVALID,
    ),
    "rule that gives no truth": (with_rule("self + 'x'", SHORT), f"{RULE}.rule", INVALID),
    "rule with a bad pattern": (with_rule("self.matches('(')", SHORT), f"{RULE}.rule", INVALID),
    "rule over too much": (
        with_rule("self.all(x, self.exists(y, x != y))", {"type": "array", "items": TEXT}),
        f"{RULE}.rule",
        FORBIDDEN,
    ),
    "rule on data without a schema": (
        with_rule("true", {"x-kubernetes-preserve-unknown-fields": True}),
        f"{FIELD}.x-kubernetes-validations",
        "InternalError",
    ),
    "rule's reason": (with_rule("self != 'x'", SHORT, reason="Because"), f"{RULE}.reason", NOT_SUPPORTED),
    "rule's field": (with_rule("self != 'x'", SHORT, fieldPath=".x"), f"{RULE}.fieldPath", INVALID),
    "message of two lines": (with_rule("self != 'x'", SHORT, message="a\nb"), f"{RULE}.message", INVALID),
    "message expression of endless length": (
        with_rule("self <= 10", {"type": "integer"}, messageExpression="'limit ' + string(self)"),
        f"{RULE}.messageExpression",
        FORBIDDEN,
    ),
    "message expression that gives a number": (
        with_rule("self <= 10", {"type": "integer"}, messageExpression="self"),
        f"{RULE}.messageExpression",
        INVALID,
    ),
    "old self in a list": (
        with_field(type="array", maxItems=9, items={**KEYED, "x-kubernetes-validations": [OLD_AND_NEW]}),
        f"{FIELD}.items.x-kubernetes-validations[0].rule",
        INVALID,
    ),
    "optional old self, unused": (
        with_rule("self != 'x'", SHORT, optionalOldSelf=True),
        f"{RULE}.optionalOldSelf",
        INVALID,
    ),
    "too many rules": (
        with_root(
            properties={
                f"f{index}": {
                    "type": "array",
                    "maxItems": 20,
                    "items": TEXT,
                    "x-kubernetes-validations": [{"rule": "self.all(x, x.contains('a'))"}],
                }
                for index in range(20)
            }
        ),
        SCHEMA,
        FORBIDDEN,
    ),
}


@pytest.mark.parametrize(("mistaken", "path", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_with_its_path_and_reason(mistaken: JSON, path: str, reason: str) -> None:
    found = {
        (fault.cause()["field"], fault.cause()["reason"])
        for fault in check_definition(mistaken, components())
    }
    assert (path, reason) in found


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("default against its rule", "Invalid value: one"),
        (
            "default that lacks what its rule reads",
            'Invalid value: "object": no such key: min evaluating rule: self.min <= self.max',
        ),
        (
            "message expression of endless length",
            "Forbidden: estimated messageExpression cost exceeds budget by factor of more than 100x (try "
            "simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and "
            "strings are declared)",
        ),
    ],
)
def test_a_mistake_is_told_as_a_real_api_server_told_it(mistake: str, message: str) -> None:
    mistaken, path, _ = MISTAKES[mistake]
    assert f"{path}: {message}" in [str(fault) for fault in check_definition(mistaken, components())]


def test_without_mistakes_it_is_taken() -> None:
    assert check_definition(definition(), components()) == []
