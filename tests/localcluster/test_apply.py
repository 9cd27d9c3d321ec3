"""Server-side apply: what one manager's apply makes of an object, and of managedFields."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localcluster.apply import ApplyConflict, Writer, after_update, server_side_apply
from localcluster.builtin import components
from localcluster.field_sets import intersection
from localcluster.schema_nodes import reference_to

JSON = dict[str, Any]

DEPLOYMENT = reference_to("io.k8s.api.apps.v1.Deployment")
words = st.sampled_from("abcd")
labels = st.dictionaries(words, words, max_size=3)


@st.composite
def manifests(draw: st.DrawFn) -> JSON:
    """Parts of Deployments: a map, an atomic map, lists by one key and by two, a scalar that may be missing."""
    container: JSON = {"name": draw(words)}
    container |= {
        key: value
        for key, value in {
            "image": draw(words),
            "env": [{"name": key, "value": value} for key, value in draw(labels).items()],
            "ports": [{"containerPort": port} for port in draw(st.sets(st.integers(1, 3), max_size=2))],
            "command": draw(st.lists(words, max_size=2)),
        }.items()
        if value and draw(st.booleans())
    }
    spec: JSON = {
        "selector": {"matchLabels": draw(labels)},
        "template": {"spec": {"containers": [container]}},
    }
    if draw(st.booleans()):
        spec["replicas"] = draw(st.integers(1, 3))
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"labels": draw(labels)}, "spec": spec}


def applied(live: JSON, manifest: JSON, manager: str = "dlr", *, force: bool = True) -> JSON:
    before = copy.deepcopy((live, manifest))
    obj, managed = server_side_apply(
        live, manifest, Writer(manager, "apps/v1"), "now", DEPLOYMENT, components(), force=force
    )
    assert (live, manifest) == before, "they are left as they are"
    return obj | {"metadata": {**obj["metadata"], "managedFields": managed}}


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` has all of `wanted`: elements by their keys, and maybe more."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and covers(live[key], wanted[key]) for key in wanted
        )
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        return all(any(covers(element, each) for element in live) for each in wanted)
    return bool(live == wanted)


NOTHING: JSON = {"metadata": {}}


def without_managers(obj: JSON) -> JSON:
    return obj | {"metadata": {key: each for key, each in obj["metadata"].items() if key != "managedFields"}}


@given(manifests(), manifests())
def test_the_object_then_has_all_that_the_manifest_has(first: JSON, second: JSON) -> None:
    assert covers(applied(applied(NOTHING, first), second), second)


@given(manifests(), manifests())
def test_a_second_time_there_is_nothing_to_change(first: JSON, second: JSON) -> None:
    once = applied(applied(NOTHING, first), second)
    assert applied(once, second) == once


@given(manifests(), manifests())
def test_what_one_manager_alone_has_applied_is_what_it_applied_last(first: JSON, second: JSON) -> None:
    def filled(value: Any) -> Any:
        """Without what is empty: an apply leaves the map of which it has dropped the last field."""
        if isinstance(value, dict):
            inner = {key: filled(each) for key, each in value.items()}
            return {key: each for key, each in inner.items() if each not in ({}, [])}
        return [filled(each) for each in value] if isinstance(value, list) else value

    after = without_managers(applied(applied(NOTHING, first), second))
    assert filled(after) == filled(second)


@given(manifests(), manifests(), manifests())
def test_what_others_have_applied_stays_unless_it_is_applied_too(a: JSON, b: JSON, c: JSON) -> None:
    both = applied(applied(NOTHING, a, "other"), b)
    after = applied(both, c)
    theirs, taken, ours = (manifest["metadata"]["labels"] for manifest in (a, b, c))
    kept = {key: value for key, value in theirs.items() if taken.get(key, value) == value}
    assert after["metadata"].get("labels", {}) == kept | ours


@given(manifests(), manifests())
def test_without_force_what_another_has_applied_keeps_its_value(first: JSON, second: JSON) -> None:
    live = applied(NOTHING, first, "other")
    forced = applied(live, second)
    back = without_managers(applied(forced, first, "other"))
    try:
        peaceful = applied(live, second, force=False)
    except ApplyConflict as conflict:
        assert conflict.causes and back != without_managers(forced)
    else:
        assert peaceful == forced and back == without_managers(forced)


@given(manifests(), manifests())
def test_a_field_that_another_write_has_changed_is_its_writers_alone(first: JSON, second: JSON) -> None:
    def write(old: JSON, entries: list[JSON]) -> list[JSON]:
        editor = Writer("editor", "apps/v1")
        return after_update(old, second, entries, editor, "later", DEPLOYMENT, components())

    live = applied(NOTHING, first)
    entries = write(live, live["metadata"]["managedFields"])
    owned = {entry["manager"]: entry["fieldsV1"] for entry in entries}
    before, after = first["metadata"]["labels"], second["metadata"]["labels"]
    in_labels = owned.get("editor", {}).get("f:metadata", {}).get("f:labels", {})
    assert in_labels.keys() == {f"f:{key}" for key in after if before.get(key) != after[key]}
    assert not intersection(owned.get("editor", {}), owned.get("dlr", {}))
    assert write(second, entries) == entries


def test_fields_are_written_down_as_kubernetes_does() -> None:
    pod = {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "command": ["x"]}]}
    manifest = {"metadata": {"name": "d", "labels": {"app": "d"}}, "spec": {"template": {"spec": pod}}}
    (entry,) = applied(NOTHING, manifest)["metadata"]["managedFields"]
    port = {".": {}, "f:containerPort": {}}
    container = {
        ".": {},
        "f:name": {},
        "f:command": {},
        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': port},
    }
    assert entry["fieldsV1"] == {
        "f:metadata": {"f:labels": {"f:app": {}}},
        "f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"c"}': container}}}},
    }


def test_elements_of_others_keep_their_places_between_ours() -> None:
    def env(*names: str) -> JSON:
        containers = [{"name": "c", "env": [{"name": name, "value": "x"} for name in names]}]
        return {"metadata": {}, "spec": {"template": {"spec": {"containers": containers}}}}

    def order(obj: JSON) -> str:
        return "".join(each["name"] for each in obj["spec"]["template"]["spec"]["containers"][0]["env"])

    live = env("p", "a", "q", "b", "r")
    assert order(applied(live, env("a", "b"))) == "paqbr"
    assert order(applied(live, env("a", "c", "b", "d"))) == "paqcbrd"
    assert order(applied(live, env("b", "a"))) == "pbaqr"
