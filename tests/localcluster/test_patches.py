"""The three patch types, strategic merge by the schemas of the built-in kinds."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.builtin import BUILTIN_TYPES, components
from localcluster.patches import (
    InapplicablePatch,
    MalformedPatch,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)

SCHEMAS = {resource_type.kind: resource_type.schema for resource_type in BUILTIN_TYPES}

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"])
keys = st.sampled_from(["a", "b", "c", "d"])
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(keys, json_values, max_size=4)


def without_nulls(value):
    """What can be written by a merge patch."""
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return value


def merge_diff(old: dict, new: dict) -> dict:
    """The merge patch from one object to another."""
    patch: dict = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            patch[key] = merge_diff(old[key], value)
        elif key not in old or json.dumps(old[key]) != json.dumps(value):
            patch[key] = value
    return patch


@given(old=objects, new=objects)
def test_merge_patch_leads_from_any_object_to_any_other(old, new) -> None:
    new = without_nulls(new)
    assert json.dumps(merge_patch(old, merge_diff(old, new)), sort_keys=True) == json.dumps(
        new, sort_keys=True
    )


@given(obj=objects, patch=objects)
def test_merge_patch_is_idempotent_and_leaves_its_arguments_alone(obj, patch) -> None:
    obj_before, patch_before = copy.deepcopy(obj), copy.deepcopy(patch)
    once = merge_patch(obj, patch)
    assert (obj, patch) == (obj_before, patch_before)
    assert merge_patch(once, patch) == once
    for key in obj.keys() - patch.keys():
        assert once[key] is obj[key]


@given(obj=objects)
def test_patch_that_changes_nothing_returns_the_object_itself(obj) -> None:
    assert merge_patch(obj, {}) is obj
    scalars_only = {key: value for key, value in obj.items() if isinstance(value, (bool, int, str))}
    assert merge_patch(obj, scalars_only) is obj


@pytest.mark.parametrize(
    "operations", [{}, [{"op": "jump", "path": "/a"}], [{"path": "/a"}], ["x"], [{"op": "remove"}]]
)
def test_malformed_json_patch_is_told_apart(operations) -> None:
    with pytest.raises(MalformedPatch):
        json_patch({"a": 1}, operations)


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "remove", "path": "/b"}],
        [{"op": "replace", "path": "/b/c", "value": 1}],
        [{"op": "replace", "path": "", "value": 1}],
    ],
)
def test_json_patch_that_does_not_fit_is_told_apart(operations) -> None:
    with pytest.raises(InapplicablePatch):
        json_patch({"a": 1}, operations)


def strategic(kind: str, obj: dict, patch: dict) -> dict:
    before = copy.deepcopy(obj)
    result = strategic_merge_patch(obj, patch, SCHEMAS[kind], components())
    assert obj == before
    return result


def pod(*containers: dict, **spec) -> dict:
    return {"metadata": {"name": "a"}, "spec": {"containers": list(containers), **spec}}


def test_conditions_taints_and_finalizers_follow_their_own_strategies() -> None:
    node = {
        "metadata": {"finalizers": ["a", "b"]},
        "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}]},
    }
    result = strategic(
        "Node",
        node,
        {
            "metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]},
            "spec": {"taints": [{"key": "y", "effect": "NoExecute"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]
            },
        },
    )
    assert sorted(result["metadata"]["finalizers"]) == ["b", "c"]
    assert result["spec"]["taints"] == [{"key": "y", "effect": "NoExecute"}]
    assert result["status"]["conditions"] == [
        {"type": "Ready", "status": "False", "reason": "r"},
        {"type": "New", "status": "True"},
    ]


container_names = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)


@given(old=container_names, patch=container_names)
def test_merged_lists_keep_every_element_once_and_in_place(old, patch) -> None:
    result = strategic(
        "Pod", pod(*({"name": n} for n in old)), pod(*({"name": n, "image": "i"} for n in patch))
    )
    merged = [container["name"] for container in result["spec"]["containers"]]
    assert merged == [*old, *(name for name in patch if name not in old)]


def test_long_lists_are_merged_in_linear_time() -> None:
    """A body of 1 MB has some 60,000 elements: with each compared with each, that would take minutes."""
    long = [{"name": f"n{number}", "image": "x"} for number in range(20_000)]
    patched = strategic("Pod", pod(*long), pod(*({**each, "image": "y"} for each in long)))
    assert [each["image"] for each in patched["spec"]["containers"]] == ["y"] * len(long)
