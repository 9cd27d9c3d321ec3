"""Compiled schemas: pruning, defaulting, validation, CEL rules."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.builtin import BUILTIN_TYPES, components
from localcluster.patches import merge_patch
from localcluster.schema import CompiledSchema

PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}
TEMPLATE = {"type": "object", **PRESERVE}


def obj(**properties) -> dict:
    return {"type": "object", "properties": properties}


def text(**attributes) -> dict:
    return {"type": "string", **attributes}


def number(**attributes) -> dict:
    return {"type": "integer", **attributes}


def custom(**properties) -> CompiledSchema:
    return CompiledSchema(obj(**properties), components(), custom=True)


def thing(**fields) -> dict:
    return {"apiVersion": "g.example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, **fields}


JOB = custom(
    spec=obj(
        replicaSpecs={
            "type": "object",
            "additionalProperties": {
                **obj(
                    replicas=number(minimum=0, format="int32", default=1),
                    template=TEMPLATE,
                    mode=text(enum=["fast", "slow"]),
                ),
                "required": ["template"],
            },
        },
        name=text(maxLength=5, pattern="^[a-z]+$"),
        ports={"type": "array", "maxItems": 2, "items": obj(port={"x-kubernetes-int-or-string": True})},
        policy={**obj(unit=number(default=1), last=number(default=30)), "default": {}},
        since=text(format="date-time"),
        note=text(nullable=True),
        share={"type": "number", "maximum": 1, "exclusiveMinimum": True, "minimum": 0},
    ),
    status=TEMPLATE,
)


def builtin(kind: str) -> CompiledSchema:
    schema = next(each.schema for each in BUILTIN_TYPES if each.kind == kind)
    return CompiledSchema(schema, components(), custom=False)


POD = builtin("Pod")


def faults(schema: CompiledSchema, new: dict, old: dict | None = None) -> list[str]:
    return [str(fault) for fault in schema.validate(new, old)]


# Pruning


def test_unknown_fields_are_pruned_and_named_by_their_paths() -> None:
    given_job = thing(
        spec={
            "replicaSpecs": {"worker": {"replicas": 1, "foo": 1, "template": {"spec": {"any": 1}}}},
            "ports": [{"port": 1}, {"prot": 1}],
            "bar": {"deep": 1},
        },
        status={"whatever": [1, {"x": 2}]},
        extra=1,
    )
    before = copy.deepcopy(given_job)
    pruned, unknown = JOB.prune(given_job)
    assert unknown == ["extra", "spec.bar", "spec.ports[1].prot", "spec.replicaSpecs.worker.foo"]
    assert given_job == before
    assert pruned["spec"] == {
        "replicaSpecs": {"worker": {"replicas": 1, "template": {"spec": {"any": 1}}}},
        "ports": [{"port": 1}, {}],
    }
    assert pruned["status"] is given_job["status"]


keys = st.sampled_from(["a", "b", "c", "spec", "deep"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)
PRUNED = custom(
    spec=obj(
        a=text(),
        b={"type": "array", "items": obj(a=text(), b=obj())},
        c={"type": "object", "additionalProperties": obj(a=number(default=3))},
        deep={**obj(a=obj(b=text())), **PRESERVE},
    )
)


@given(spec=st.dictionaries(keys, values, max_size=5))
def test_pruning_is_idempotent_removes_only_and_leaves_its_argument_alone(spec) -> None:
    given_obj = thing(spec=spec)
    before = json.dumps(given_obj)
    pruned, unknown = PRUNED.prune(given_obj)
    assert json.dumps(given_obj) == before
    again, nothing = PRUNED.prune(pruned)
    assert again is pruned and nothing == []
    assert (pruned == given_obj) is not bool(unknown)
    assert pruned["spec"].items() <= given_obj["spec"].items() or unknown


@given(spec=st.dictionaries(keys, values, max_size=5), patch=st.dictionaries(keys, values, max_size=3))
def test_skipping_unchanged_parts_changes_no_outcome(spec, patch) -> None:
    stored = PRUNED.default(PRUNED.prune(thing(spec=spec))[0])
    patched = merge_patch(stored, {"spec": patch})
    apart = json.loads(json.dumps(patched))
    pruned, unknown = PRUNED.prune(patched, stored)
    assert (pruned, unknown) == PRUNED.prune(apart)
    assert PRUNED.default(pruned, stored) == PRUNED.default(PRUNED.prune(apart)[0])


@given(spec=st.dictionaries(keys, values, max_size=5))
def test_defaulting_is_idempotent_and_leaves_its_argument_alone(spec) -> None:
    given_obj = thing(spec=spec)
    before = json.dumps(given_obj)
    completed = PRUNED.default(given_obj)
    assert json.dumps(given_obj) == before
    assert PRUNED.default(completed) is completed


# Defaulting


def test_null_becomes_the_default_or_vanishes_unless_it_is_a_value() -> None:
    completed = JOB.default(thing(spec={"policy": {"unit": None}, "name": None, "note": None}))
    assert completed["spec"] == {"policy": {"unit": 1, "last": 30}, "note": None}


# Validation


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"replicaSpecs": {"worker": {"replicas": "two", "template": {}}}},
            'spec.replicaSpecs.worker.replicas: Invalid value: "string": spec.replicaSpecs.worker.replicas in body '
            'must be of type integer: "string"',
        ),
        (
            {"replicaSpecs": {"worker": {"replicas": -1, "template": {}}}},
            "spec.replicaSpecs.worker.replicas: Invalid value: -1: spec.replicaSpecs.worker.replicas in body "
            "should be greater than or equal to 0",
        ),
        (
            {"replicaSpecs": {"worker": {"replicas": 2**40, "template": {}}}},
            "spec.replicaSpecs.worker.replicas: Invalid value: 1099511627776: spec.replicaSpecs.worker.replicas "
            "in body must be of type integer with format int32",
        ),
        ({"replicaSpecs": {"worker": {}}}, "spec.replicaSpecs.worker.template: Required value"),
        (
            {"replicaSpecs": {"worker": {"template": {}, "mode": "odd"}}},
            'spec.replicaSpecs.worker.mode: Unsupported value: "odd": supported values: "fast", "slow"',
        ),
        ({"name": "abcdef"}, "spec.name: Too long: may not be more than 5 bytes"),
        ({"name": "A1"}, "spec.name: Invalid value: \"A1\": spec.name in body should match '^[a-z]+$'"),
        ({"ports": [{}, {}, {}]}, "spec.ports: Too many: 3: must have at most 2 items"),
        (
            {"ports": [{"port": 1.5}]},
            'spec.ports[0].port: Invalid value: "number": spec.ports[0].port in body must be of type '
            'integer,string: "number"',
        ),
        (
            {"since": "yesterday"},
            'spec.since: Invalid value: "yesterday": spec.since in body must be of type date-time: "yesterday"',
        ),
        ({"share": 0}, "spec.share: Invalid value: 0: spec.share in body should be greater than 0"),
        (
            {"share": True},
            'spec.share: Invalid value: "boolean": spec.share in body must be of type number: "boolean"',
        ),
        ([], 'spec: Invalid value: "array": spec in body must be of type object: "array"'),
    ],
)
def test_bad_value_is_refused_in_kubernetes_words(spec, expected) -> None:
    assert faults(JOB, thing(spec=spec)) == [expected]


def test_sets_and_list_maps_hold_each_key_once() -> None:
    schema = custom(
        spec=obj(
            tags={"type": "array", "items": text(), "x-kubernetes-list-type": "set"},
            conditions={
                "type": "array",
                "items": obj(type=text(), status=text()),
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        )
    )
    spec = {
        "tags": ["a", "b", "a"],
        "conditions": [{"type": "x", "status": "1"}, {"type": "x", "status": "2"}],
    }
    assert faults(schema, thing(spec=spec)) == [
        'spec.tags[2]: Duplicate value: "a"',
        'spec.conditions[1]: Duplicate value: {"type":"x"}',
    ]


def test_fault_that_was_there_before_does_not_fail_an_update() -> None:
    old = thing(spec={"name": "TOO LONG", "since": "2026-01-02T03:04:05Z"})
    new = json.loads(json.dumps(old)) | {"metadata": {"name": "a", "labels": {"x": "y"}}}
    assert faults(JOB, new, old) == []
    new["spec"]["since"] = "bad"
    assert [fault.field for fault in JOB.validate(new, old)] == ["spec.since"]


def test_pod_faults_have_paths() -> None:
    pod = {
        "metadata": {"name": "a", "labels": {"x": 1}},
        "spec": {
            "containers": [
                {"image": "x", "resources": {"limits": {"cpu": "much"}}, "ports": [{"containerPort": 0}]}
            ],
            "restartPolicy": "Sometimes",
        },
    }
    assert [fault.field for fault in POD.validate(pod)] == [
        "metadata.labels.x",
        "spec.containers[0].resources.limits.cpu",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[0].name",
        "spec.restartPolicy",
    ]


@pytest.mark.parametrize("resource_type", BUILTIN_TYPES, ids=lambda t: t.group_resource)
def test_every_builtin_schema_compiles(resource_type) -> None:
    schema = CompiledSchema(resource_type.schema, components(), custom=False)
    assert schema.prune({"metadata": {"name": "a"}, "nonsense": 1})[1] == ["nonsense"]


# Rules


def ruled(*rules: dict, **properties) -> CompiledSchema:
    return custom(spec={**obj(**properties), "x-kubernetes-validations": list(rules)})


BOUNDS = ruled(
    {"rule": "!has(self.low) || self.low <= self.high", "message": "low must not be greater than high"},
    low=number(),
    high=number(default=5),
)


def test_rule_without_message_is_shown_itself_and_failing_one_with_its_cause() -> None:
    schema = ruled({"rule": "self.a > 1"}, a=number())
    assert faults(schema, thing(spec={"a": 1})) == ["spec: Invalid value: failed rule: self.a > 1"]
    assert faults(schema, thing(spec={})) == [
        'spec: Invalid value: "object": no such key: a evaluating rule: failed rule: self.a > 1'
    ]


def test_transition_rule_compares_with_the_stored_state_only() -> None:
    schema = ruled(
        {"rule": "self.owner == oldSelf.owner", "message": "immutable"}, owner=text(), other=text()
    )
    old = thing(spec={"owner": "a"})
    assert faults(schema, old) == []
    assert faults(schema, thing(spec={"owner": "b"}), old) == ["spec: Invalid value: immutable"]
    assert faults(schema, thing(spec={"owner": "a", "other": "x"}), old) == []
    assert faults(schema, thing(spec={"owner": "b"}), thing()) == []


def test_rules_are_not_asked_about_unchanged_parts_unless_they_are_transitions() -> None:
    bad = thing(spec={"low": 9, "high": 2})
    assert faults(BOUNDS, {**bad, "status": {}}, bad) == []
    must_change = ruled({"rule": "self.a != oldSelf.a", "message": "must change"}, a=number())
    old = thing(spec={"a": 1})
    assert faults(must_change, {**old, "metadata": {"name": "b"}}, old) == [
        "spec: Invalid value: must change"
    ]


def test_a_field_that_is_null_is_absent_in_rules_and_an_item_that_is_null_is_null() -> None:
    """As `TestValidationExpressions` of apiextensions-apiserver has it ("field nullability")."""
    note, items = text(nullable=True), {"type": "object", "additionalProperties": text(nullable=True)}
    schema = ruled({"rule": "!has(self.note) && 'a' in self.items"}, note=note, items=items)
    assert faults(schema, thing(spec={"note": None, "items": {"a": None}})) == []
    assert faults(schema, thing(spec={"note": "x", "items": {"a": None}})) != []


def test_numbers_are_doubles_in_rules() -> None:
    schema = ruled(
        {"rule": "self.ratio * 2.0 == 2.0"},
        {"rule": "self.port + 1 == 81"},
        ratio={"type": "number"},
        port={"x-kubernetes-int-or-string": True},
    )
    assert faults(schema, thing(spec={"ratio": 1, "port": 80})) == []


TIMES = {
    "date-time": (
        [
            *("2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", "2026-02-28T23:59:59.123456789+01:00"),
            *("2026-01-01T00:00:00+99:99", "0000-02-29T00:00:00-00:00", "2026-01-01T00:00:00Zt x"),
        ],
        [
            *("nonsense", "", "2026-01-01", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00"),
            *("2026-01-01T24:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T00:00:60Z"),
            *("2026-01-01T00:00:00Zx", "0001-02-29T00:00:00Z", "2026-01-01T00:00:00Z\n"),
        ],
    ),
    "date": (["2024-02-29", "0000-01-01"], ["2023-02-29", "2026-W01-1", "20260101"]),
    "byte": (["YQ==", "", "YW\nJj"], ["YQ", "*"]),
    "uuid": (["only words"], []),
}


@pytest.mark.parametrize("name", TIMES)
def test_texts_are_held_to_their_format(name: str) -> None:
    schema = custom(spec=obj(a=text(format=name)))
    taken, refused = TIMES[name]
    assert [each for each in taken if faults(schema, thing(spec={"a": each}))] == []
    assert [each for each in refused if not faults(schema, thing(spec={"a": each}))] == []


def test_patterns_are_read_as_go_reads_them() -> None:
    schema = custom(spec=obj(a=text(pattern=r"^\pL[[:alpha:]]*\z")))
    assert faults(schema, thing(spec={"a": "Äb"})) == []
    assert faults(schema, thing(spec={"a": "b\n"})) != []
