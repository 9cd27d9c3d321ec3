"""JSON patch, merge patch and strategic merge patch, and what kubectl builds on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import condition, container, idle_deployment, unschedulable_pod, widget
from .rawapi import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api, revision
from .resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    PODS,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def patched(api: Api, make: Maker, patch: Any, content_type: str = MERGE_PATCH) -> JSON:
    return (await api.patch(WIDGETS, make.namespace, "w", patch, content_type=content_type)).expect(200)


async def test_merge_patch_merges_objects_replaces_lists_and_drops_nulls(api: Api, make: Maker) -> None:
    await make.widget("w", {"tags": ["a", "b"], "attributes": {"x": "1", "y": "2"}, "min": 1})
    patch = {"spec": {"tags": ["c"], "attributes": {"y": "3", "z": "4"}, "min": None}}
    spec = (await patched(api, make, patch))["spec"]
    assert spec["tags"] == ["c"]
    assert spec["attributes"] == {"x": "1", "y": "3", "z": "4"}
    assert "min" not in spec
    assert spec["title"] == "example"


async def test_a_patch_that_changes_nothing_writes_nothing(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"size": 5})
    since = (await api.list(WIDGETS, make.namespace)).body["metadata"]["resourceVersion"]
    same = await patched(api, make, {"spec": {"size": 5}})
    assert revision(same) == revision(made)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await patched(api, make, {"spec": {"size": 6}})
        event = await watch.next()
    assert event["object"]["spec"]["size"] == 6


async def test_a_patch_with_a_stale_resource_version_conflicts(api: Api, make: Maker) -> None:
    made = await make.widget()
    await patched(api, make, {"spec": {"size": 6}})
    version = made["metadata"]["resourceVersion"]
    stale = {"metadata": {"resourceVersion": version}, "spec": {"size": 7}}
    (await api.patch(WIDGETS, make.namespace, "w", stale)).refused(409, "Conflict")


async def test_a_patch_of_nothing_is_not_found(api: Api, namespace: str) -> None:
    (await api.patch(WIDGETS, namespace, "none", {"spec": {"size": 7}})).refused(404, "NotFound")


async def test_json_patch_operations(api: Api, make: Maker) -> None:
    await make.widget("w", {"tags": ["a", "b"], "attributes": {"x": "1"}, "min": 1})
    operations = [
        {"op": "test", "path": "/spec/tags/0", "value": "a"},
        {"op": "add", "path": "/spec/tags/-", "value": "c"},
        {"op": "remove", "path": "/spec/tags/0"},
        {"op": "replace", "path": "/spec/size", "value": 9},
        {"op": "copy", "from": "/spec/attributes/x", "path": "/spec/attributes/y"},
        {"op": "move", "from": "/spec/min", "path": "/spec/max"},
        {"op": "add", "path": "/metadata/annotations", "value": {"a.b/c": "1"}},
        {"op": "replace", "path": "/metadata/annotations/a.b~1c", "value": "2"},
        {"op": "add", "path": "/spec/attributes/x~0y", "value": "3"},
    ]
    made = await patched(api, make, operations, JSON_PATCH)
    spec = made["spec"]
    assert (spec["tags"], spec["size"]) == (["b", "c"], 9)
    assert spec["attributes"] == {"x": "1", "y": "1", "x~y": "3"}
    assert (spec.get("min"), spec["max"]) == (None, 1)
    assert made["metadata"]["annotations"] == {"a.b/c": "2"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/spec/size", "value": 99},
        {"op": "remove", "path": "/spec/nothing"},
        {"op": "replace", "path": "/spec/nothing/below", "value": 1},
    ],
    ids=["failed-test", "missing-target", "missing-parent"],
)
async def test_a_json_patch_that_does_not_apply_is_refused_whole(
    api: Api, make: Maker, operation: JSON
) -> None:
    await make.widget("w", {"size": 5})
    operations = [{"op": "replace", "path": "/spec/size", "value": 6}, operation]
    reply = await api.patch(WIDGETS, make.namespace, "w", operations, content_type=JSON_PATCH)
    reply.expect(422)
    assert (await api.get(WIDGETS, make.namespace, "w")).body["spec"]["size"] == 5


@pytest.mark.parametrize(
    ("patch", "content_type"), [({"op": "add"}, JSON_PATCH), ("text", MERGE_PATCH), ([1], MERGE_PATCH)]
)
async def test_a_malformed_patch_is_a_bad_request(
    api: Api, make: Maker, patch: Any, content_type: str
) -> None:
    await make.widget()
    reply = await api.patch(WIDGETS, make.namespace, "w", patch, content_type=content_type)
    reply.refused(400, "BadRequest")


async def test_strategic_merge_patch_of_a_custom_resource_is_unsupported(api: Api, make: Maker) -> None:
    await make.widget()
    reply = await api.patch(WIDGETS, make.namespace, "w", {}, content_type=STRATEGIC_PATCH)
    message = reply.refused(415, "UnsupportedMediaType")["message"]
    assert JSON_PATCH in message
    assert MERGE_PATCH in message


async def test_an_unknown_kind_of_patch_is_unsupported(api: Api, make: Maker) -> None:
    await make.widget()
    reply = await api.patch(WIDGETS, make.namespace, "w", {}, content_type="application/json")
    reply.refused(415, "UnsupportedMediaType")


async def deployment(api: Api, make: Maker, patch: JSON, *containers: JSON) -> JSON:
    """A Deployment's Pod spec after a strategic merge patch to it."""
    obj = idle_deployment(make.namespace, "d", *containers)
    (await api.create(DEPLOYMENTS, obj)).expect(201)
    whole = {"spec": {"template": {"spec": patch}}}
    reply = await api.patch(DEPLOYMENTS, make.namespace, "d", whole, content_type=STRATEGIC_PATCH)
    return reply.expect(200)["spec"]["template"]["spec"]


def env(**values: str) -> list[JSON]:
    return [{"name": name, "value": value} for name, value in values.items()]


async def test_strategic_merge_patch_merges_lists_by_their_key(api: Api, make: Maker) -> None:
    patch = {"containers": [{"name": "b", "image": "new", "env": [*env(Y="2")]}]}
    spec = await deployment(api, make, patch, container("a"), container("b", env=env(X="1")))
    by_name = {c["name"]: c for c in spec["containers"]}
    assert [c["name"] for c in spec["containers"]] == ["a", "b"]
    assert by_name["b"]["image"] == "new"
    assert {e["name"]: e["value"] for e in by_name["b"]["env"]} == {"X": "1", "Y": "2"}
    assert by_name["a"]["image"] == container()["image"]


async def test_strategic_merge_patch_deletes_and_replaces_by_directive(api: Api, make: Maker) -> None:
    patch = {
        "containers": [
            {"name": "a", "$patch": "delete"},
            {"name": "b", "env": [{"$patch": "replace"}, *env(Z="3")]},
        ]
    }
    spec = await deployment(api, make, patch, container("a"), container("b", env=env(X="1", Y="2")))
    assert [c["name"] for c in spec["containers"]] == ["b"]
    assert spec["containers"][0]["env"] == env(Z="3")


async def test_strategic_merge_patch_orders_as_told(api: Api, make: Maker) -> None:
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "new", "command": ["/bin/true"]}],
    }
    spec = await deployment(api, make, patch, container("a"))
    assert [c["name"] for c in spec["containers"]] == ["c", "a"]


async def test_strategic_merge_patch_retains_only_the_keys_it_names(api: Api, make: Maker) -> None:
    obj = idle_deployment(make.namespace, "d")
    (await api.create(DEPLOYMENTS, obj)).expect(201)
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate", "rollingUpdate": None}}}
    reply = await api.patch(DEPLOYMENTS, make.namespace, "d", patch, content_type=STRATEGIC_PATCH)
    assert reply.expect(200)["spec"]["strategy"] == {"type": "Recreate"}


async def test_strategic_merge_patch_of_plain_lists(api: Api, make: Maker) -> None:
    name = "conformance.dlr.dev/"
    await make.configmap("c", finalizers=[name + "a", name + "b"])
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [name + "a"], "finalizers": [name + "c"]}}
    reply = await api.patch(CONFIGMAPS, make.namespace, "c", patch, content_type=STRATEGIC_PATCH)
    assert set(reply.expect(200)["metadata"]["finalizers"]) == {name + "b", name + "c"}
    await api.patch(CONFIGMAPS, make.namespace, "c", {"metadata": {"finalizers": None}})


async def test_strategic_merge_patch_of_conditions_goes_by_type(api: Api, make: Maker) -> None:
    (await api.create(PODS, unschedulable_pod(make.namespace, "p"))).expect(201)
    for change in (condition("example.com/one"), condition("example.com/two", "False")):
        patch = {"status": {"conditions": [change]}}
        reply = await api.patch(PODS, make.namespace, "p", patch, sub="status", content_type=STRATEGIC_PATCH)
        reply.expect(200)
    conditions = {c["type"]: c["status"] for c in reply.body["status"]["conditions"]}
    assert {"example.com/one": "True", "example.com/two": "False"}.items() <= conditions.items()


async def test_a_running_pods_command_cannot_be_changed(api: Api, make: Maker) -> None:
    (await api.create(PODS, unschedulable_pod(make.namespace, "p"))).expect(201)
    patch = {"spec": {"containers": [{"name": "main", "command": ["/bin/false"]}]}}
    reply = await api.patch(PODS, make.namespace, "p", patch, content_type=STRATEGIC_PATCH)
    assert "spec" in reply.refused(422, "Invalid")["message"]
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    reply = await api.patch(PODS, make.namespace, "p", image, content_type=STRATEGIC_PATCH)
    assert reply.expect(200)["spec"]["containers"][0]["image"] == "other"


async def test_kubectl_apply_adds_changes_and_removes(kubectl: Kubectl, namespace: str) -> None:
    first = widget(namespace, "w", {"size": 5, "attributes": {"x": "1", "y": "2"}})
    assert "created" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    assert "unchanged" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    second = widget(namespace, "w", {"color": "blue", "attributes": {"y": "3"}}, labels={"new": "yes"})
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", WG, "w", "-o", "json", namespace=namespace)).json
    assert got["spec"]["attributes"] == {"y": "3"}
    assert (got["spec"]["size"], got["spec"]["color"]) == (3, "blue")
    assert got["metadata"]["labels"] == {"new": "yes"}


async def test_kubectl_apply_of_a_built_in_is_three_way_too(kubectl: Kubectl, namespace: str) -> None:
    first = idle_deployment(namespace, "d", container("a", env=env(X="1", Y="2")), container("b"))
    await kubectl.run("apply", "-f", "-", stdin=first)
    await kubectl.run("label", "deployment", "d", "kept=yes", namespace=namespace)
    second = idle_deployment(namespace, "d", container("a", env=env(Y="3", Z="4")))
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", "deployment", "d", "-o", "json", namespace=namespace)).json
    (only,) = got["spec"]["template"]["spec"]["containers"]
    assert sorted(only["env"], key=lambda e: e["name"]) == env(Y="3", Z="4")
    assert got["metadata"]["labels"]["kept"] == "yes"


async def test_kubectl_diff_tells_whether_apply_would_change(kubectl: Kubectl, namespace: str) -> None:
    obj = widget(namespace, "w", {"size": 5})
    await kubectl.run("apply", "-f", "-", stdin=obj)
    assert (await kubectl.run("diff", "-f", "-", stdin=obj)).code == 0
    output = await kubectl.run("diff", "-f", "-", stdin=widget(namespace, "w", {"size": 6}), code=1)
    assert "+  size: 6" in output.stdout


@pytest.mark.parametrize(
    ("kind", "patch"),
    [("merge", '{"spec":{"size":8}}'), ("json", '[{"op":"replace","path":"/spec/size","value":8}]')],
)
async def test_kubectl_patches(kubectl: Kubectl, make: Maker, kind: str, patch: str) -> None:
    await make.widget()
    arguments = (WG, "w", "--type", kind, "-p", patch)
    output = await kubectl.run("patch", *arguments, "-o", "jsonpath={.spec.size}", namespace=make.namespace)
    assert output.stdout == "8"
    again = await kubectl.run("patch", *arguments, namespace=make.namespace)
    assert "(no change)" in again.stdout


async def test_kubectl_patches_a_built_in_strategically(kubectl: Kubectl, make: Maker) -> None:
    await make.configmap("c", {"a": "1"})
    await kubectl.run("patch", "cm", "c", "-p", '{"data":{"b":"2"}}', namespace=make.namespace)
    output = await kubectl.run("get", "cm", "c", "-o", "jsonpath={.data}", namespace=make.namespace)
    assert output.stdout == '{"a":"1","b":"2"}'


async def test_kubectl_says_that_strategic_patches_do_not_fit(kubectl: Kubectl, make: Maker) -> None:
    await make.widget()
    said = await kubectl.refused("patch", WG, "w", "-p", "{}", namespace=make.namespace)
    assert "strategic-merge-patch+json is not supported" in said


async def test_kubectl_patches_status(kubectl: Kubectl, make: Maker) -> None:
    await make.widget()
    arguments = ("--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Done"}}')
    await kubectl.run("patch", WG, "w", *arguments, namespace=make.namespace)
    shown = await kubectl.run(
        "get", WG, "w", "--subresource=status", "-o", "jsonpath={.status.phase}", namespace=make.namespace
    )
    assert shown.stdout == "Done"


async def test_kubectl_labels_and_annotates(kubectl: Kubectl, make: Maker) -> None:
    await make.widget()
    namespace = make.namespace
    await kubectl.run("label", WG, "w", "tier=front", namespace=namespace)
    said = await kubectl.refused("label", WG, "w", "tier=back", namespace=namespace)
    assert "--overwrite is false" in said
    await kubectl.run("label", WG, "w", "tier=back", "--overwrite", namespace=namespace)
    await kubectl.run("annotate", WG, "w", "why=because", namespace=namespace)
    got = (await kubectl.run("get", WG, "w", "-o", "json", namespace=namespace)).json["metadata"]
    assert (got["labels"], got["annotations"]) == ({"tier": "back"}, {"why": "because"})
    await kubectl.run("label", WG, "w", "tier-", namespace=namespace)
    got = (await kubectl.run("get", WG, "w", "-o", "json", namespace=namespace)).json["metadata"]
    assert not got.get("labels")


async def test_kubectl_replaces(kubectl: Kubectl, make: Maker) -> None:
    made = await make.widget("w", {"size": 5})
    made["spec"]["size"] = 6
    assert "replaced" in (await kubectl.run("replace", "-f", "-", stdin=made)).stdout
    assert "the object has been modified" in await kubectl.refused("replace", "-f", "-", stdin=made)


async def test_kubectl_edits(kubectl: Kubectl, make: Maker, tmp_path: Path) -> None:
    await make.widget("w", {"size": 6})
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/size: 6/size: 7/' \"$1\"\n")
    editor.chmod(0o700)
    environment = {"KUBE_EDITOR": str(editor)}
    output = await kubectl.run("edit", WG, "w", namespace=make.namespace, environment=environment)
    assert "edited" in output.stdout
    got = await kubectl.run("get", WG, "w", "-o", "jsonpath={.spec.size}", namespace=make.namespace)
    assert got.stdout == "7"
