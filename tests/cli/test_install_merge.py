"""The three-way merge: what it changes, what it leaves, and that a second time there is nothing to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlr.commands.install.merge import LAST_APPLIED, annotated, covers, last_applied, three_way
from localcluster.patches import merge_patch

JSON = dict[str, Any]

names = st.sampled_from("abc")
scalars = st.sampled_from([0, 1, True, False, "x", "y", 1.5])
values = st.recursive(
    scalars,
    lambda inner: st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=3)


def applied(original: JSON, modified: JSON, current: JSON) -> JSON:
    return merge_patch(current, three_way(original, modified, current))


@given(objects, objects, objects)
def test_the_object_then_says_all_that_the_manifest_does(
    original: JSON, modified: JSON, current: JSON
) -> None:
    assert covers(applied(original, modified, current), modified)


@given(objects, objects, objects)
def test_a_second_time_there_is_nothing_to_change(original: JSON, modified: JSON, current: JSON) -> None:
    assert three_way(modified, modified, applied(original, modified, current)) == {}


@given(objects, objects, objects)
def test_fields_of_others_stay(original: JSON, modified: JSON, current: JSON) -> None:
    result = applied(original, modified, current)
    for key, value in current.items():
        if key not in original and key not in modified:
            assert result[key] == value
    assert set(result) <= set(current) | set(modified)


@given(objects, objects, objects)
def test_fields_that_the_manifest_no_longer_has_go(original: JSON, modified: JSON, current: JSON) -> None:
    result = applied(original, modified, current)
    assert not (set(original) - set(modified)) & set(result)


@given(objects, objects)
def test_an_object_that_only_has_defaults_added_is_left_alone(modified: JSON, extra: JSON) -> None:
    def with_defaults(value: Any) -> Any:
        if isinstance(value, dict):
            return {"default": extra} | {key: with_defaults(inner) for key, inner in value.items()}
        return [with_defaults(inner) for inner in value] if isinstance(value, list) else value

    live = with_defaults(modified)
    assert three_way(modified, modified, live) == {} == three_way({}, modified, live)


@given(objects, objects)
def test_without_a_live_field_the_manifest_is_all_there_is(original: JSON, modified: JSON) -> None:
    assert covers(modified, applied(original, modified, {})) and covers(
        applied(original, modified, original), modified
    )


@pytest.mark.parametrize(
    ("original", "modified", "current", "patch"),
    [
        ({"a": 1}, {"a": 1}, {"a": 2}, {"a": 1}),
        ({"a": 1}, {}, {"a": 2}, {"a": None}),
        ({}, {"a": {}}, {}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1, "c": 2}}, {"a": {"b": None}}),
        ({}, {"a": True}, {"a": 1}, {"a": True}),
        ({}, {"l": [{"n": 1}]}, {"l": [{"n": 1, "default": 2}]}, {}),
        ({"l": [{"n": 1, "m": 2}]}, {"l": [{"n": 1}]}, {"l": [{"n": 1, "m": 2}]}, {"l": [{"n": 1}]}),
        ({"l": [1]}, {"l": [1]}, {"l": [1, 2]}, {"l": [1]}),
    ],
)
def test_cases(original: JSON, modified: JSON, current: JSON, patch: JSON) -> None:
    assert three_way(original, modified, current) == patch


OURS = {"name": "controller", "image": "r/c:1", "env": [{"name": "POD_NAME", "value": "p"}]}
NEWER = {**OURS, "image": "r/c:2"}
PROXY = {"name": "HTTPS_PROXY", "value": "http://proxy"}
SIDECAR = {"name": "sidecar", "image": "s"}
SET_BY_ADMIN = {
    "resources": {"limits": {"memory": "4Gi"}},
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl"}],
    "env": [PROXY, *OURS["env"]],
}


@pytest.mark.parametrize(
    ("field", "original", "modified", "current", "result"),
    [
        ("containers", [OURS], [NEWER], [{**OURS, **SET_BY_ADMIN}], [{**NEWER, **SET_BY_ADMIN}]),
        ("containers", [OURS], [NEWER], [SIDECAR, OURS], [SIDECAR, NEWER]),
        ("containers", [OURS, SIDECAR], [NEWER], [SIDECAR, OURS], [NEWER]),
        (
            "containers",
            [{**OURS, "tty": True}],
            [OURS],
            [{**OURS, "tty": True, "stdin": True}],
            [{**OURS, "stdin": True}],
        ),
        ("containers", [], [OURS], [SIDECAR], [SIDECAR, OURS]),
        (
            "env",
            [{"name": "A"}],
            [{"name": "B"}, {"name": "C"}],
            [{"name": "A"}, PROXY],
            [PROXY, {"name": "B"}, {"name": "C"}],
        ),
        (
            "volumeMounts",
            [],
            [{"mountPath": "/a"}],
            [{"mountPath": "/b"}],
            [{"mountPath": "/b"}, {"mountPath": "/a"}],
        ),
        ("ports", [{"port": 1}], [{"port": 2}], [{"port": 1}, {"port": 3}], [{"port": 2}]),
        ("volumes", [{"name": "v"}], None, [{"name": "v"}, {"name": "w"}], [{"name": "w"}]),
        ("volumes", [{"name": "v"}], None, [{"name": "v"}], None),
    ],
)
def test_lists_are_merged_by_key(field: str, original: Any, modified: Any, current: Any, result: Any) -> None:
    """None stands for an object without the field."""
    wanted = {} if modified is None else {field: modified}
    merged = applied({field: original}, wanted, {field: current})
    assert merged == ({} if result is None else {field: result})
    assert three_way(wanted, wanted, merged) == {}


def test_the_annotation_holds_the_manifest_as_kubectl_would_write_it() -> None:
    manifest = {
        "kind": "K",
        "apiVersion": "v1",
        "metadata": {"name": "n"},
        "spec": {"x": "a<b && ü", "y": 10.0},
    }
    live = annotated(manifest)
    assert live["metadata"]["annotations"][LAST_APPLIED] == (
        '{"apiVersion":"v1","kind":"K","metadata":{"annotations":{},"name":"n"},'
        '"spec":{"x":"a\\u003cb \\u0026\\u0026 ü","y":10}}\n'
    )
    assert last_applied(live) == {**manifest, "metadata": {"name": "n", "annotations": {}}}
    assert "annotations" not in manifest["metadata"]


@pytest.mark.parametrize("text", ["{", "[]", json.dumps("x")])
def test_an_annotation_that_cannot_be_read_is_none(text: str) -> None:
    assert last_applied({"metadata": {"annotations": {LAST_APPLIED: text}}}) == {}
