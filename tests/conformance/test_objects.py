"""What the server owns in an object: identity, versions, generation, status; and who wins when two write."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from .conftest import Maker
from .objects import configmap, container, manifest, owned_by, unschedulable_pod, widget
from .rawapi import (
    RULES_NOT_CHECKED,
    Api,
    causes,
    names,
    revision,
)
from .resources import CONFIGMAPS, NAMESPACES, PODS, SECRETS, WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]

RFC_3339_SECONDS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
UUID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


async def test_the_server_gives_an_object_its_identity(api: Api, make: Maker) -> None:
    metadata = (await make.widget())["metadata"]
    assert UUID.match(metadata["uid"])
    assert RFC_3339_SECONDS.match(metadata["creationTimestamp"])
    assert metadata["generation"] == 1
    assert metadata["namespace"] == make.namespace
    assert int(metadata["resourceVersion"]) > 0
    again = (await api.get(WIDGETS, make.namespace, "w")).expect(200)
    assert again["metadata"] == metadata


async def test_a_client_cannot_choose_an_objects_identity(api: Api, make: Maker) -> None:
    obj = widget(make.namespace, "w")
    obj["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}
    metadata = (await api.create(WIDGETS, obj)).expect(201)["metadata"]
    assert UUID.match(metadata["uid"])
    assert not metadata["creationTimestamp"].startswith("2001")
    assert metadata["generation"] == 1


async def test_an_object_made_again_is_another_one(api: Api, make: Maker) -> None:
    first = await make.widget()
    await api.delete(WIDGETS, make.namespace, "w")
    second = await make.widget()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert revision(second) > revision(first)


async def test_generated_names_are_unique(api: Api, namespace: str) -> None:
    obj = widget(namespace, "x")
    del obj["metadata"]["name"]
    obj["metadata"]["generateName"] = "made-"
    path = WIDGETS.path(namespace)
    made = [(await api.call("POST", path, body=obj)).expect(201) for _ in range(10)]
    found = {item["metadata"]["name"] for item in made}
    assert len(found) == 10
    assert all(re.match(r"^made-[a-z0-9]{5}$", name) for name in found)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254, "sp ace"])
async def test_a_bad_name_is_refused(api: Api, namespace: str, name: str) -> None:
    status = (await api.create(WIDGETS, widget(namespace, name))).refused(422, "Invalid")
    assert "metadata.name" in causes(status)


async def test_a_name_is_required(api: Api, namespace: str) -> None:
    obj = widget(namespace, "x")
    del obj["metadata"]["name"]
    status = (await api.call("POST", WIDGETS.path(namespace), body=obj)).refused(422, "Invalid")
    assert causes(status) == {"metadata.name": "FieldValueRequired", **RULES_NOT_CHECKED}


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "not valid!"}},
        {"labels": {"not a key": "x"}},
        {"annotations": {"not a key": "x"}},
        {"finalizers": ["not a finalizer"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}]},
    ],
    ids=["label-value", "label-key", "annotation-key", "finalizer", "owner"],
)
async def test_bad_metadata_is_refused(api: Api, namespace: str, metadata: JSON) -> None:
    status = (await api.create(WIDGETS, widget(namespace, "w", **metadata))).refused(422, "Invalid")
    assert any(field.startswith("metadata." + next(iter(metadata))) for field in causes(status))


async def test_an_object_has_one_controller_at_most(api: Api, make: Maker) -> None:
    one, two = await make.widget("one"), await make.widget("two")
    obj = widget(make.namespace, "w", ownerReferences=[owned_by(one), owned_by(two)])
    status = (await api.create(WIDGETS, obj)).refused(422, "Invalid")
    assert "metadata.ownerReferences" in causes(status)


async def test_nothing_is_made_in_a_namespace_that_is_not_there(api: Api) -> None:
    status = (await api.create(WIDGETS, widget("nowhere", "w"))).refused(404, "NotFound")
    assert status["message"] == 'namespaces "nowhere" not found'


async def test_not_found_says_what(api: Api, namespace: str) -> None:
    status = (await api.get(WIDGETS, namespace, "none")).refused(404, "NotFound")
    assert status["message"] == f'{WIDGETS.group_resource} "none" not found'
    assert status["details"] == {"name": "none", "group": WIDGETS.group, "kind": WIDGETS.plural}
    status = (await api.get(PODS, namespace, "none")).refused(404, "NotFound")
    assert status["message"] == 'pods "none" not found'


async def test_a_name_is_taken_once(api: Api, make: Maker) -> None:
    await make.widget()
    status = (await api.create(WIDGETS, widget(make.namespace, "w"))).refused(409, "AlreadyExists")
    assert status["message"] == f'{WIDGETS.group_resource} "w" already exists'
    replies = await asyncio.gather(*(api.create(WIDGETS, widget(make.namespace, "v")) for _ in range(8)))
    assert sorted(reply.status for reply in replies) == [201] + [409] * 7


async def test_generation_counts_changes_of_spec_only(api: Api, make: Maker) -> None:
    await make.widget()

    async def generation(patch: JSON, sub: str = "") -> int:
        reply = await api.patch(WIDGETS, make.namespace, "w", patch, sub=sub)
        return int(reply.expect(200)["metadata"]["generation"])

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"phase": "Running"}}, sub="status") == 1
    assert await generation({"spec": {"size": 4}}) == 2
    assert await generation({"spec": {"size": 4}}) == 2
    assert await generation({"spec": {"size": 5}, "metadata": {"generation": 77}}) == 3


async def test_status_is_written_through_its_subresource_only(api: Api, make: Maker) -> None:
    obj = widget(make.namespace, "w") | {"status": {"phase": "Given"}}
    assert "status" not in (await api.create(WIDGETS, obj)).expect(201)
    await api.patch(WIDGETS, make.namespace, "w", {"status": {"phase": "Running"}}, sub="status")
    patch = {"status": {"phase": "Stolen"}, "spec": {"size": 9}}
    body = (await api.patch(WIDGETS, make.namespace, "w", patch)).expect(200)
    assert (body["status"]["phase"], body["spec"]["size"]) == ("Running", 9)
    body["status"]["phase"] = "Stolen"
    assert (await api.put(WIDGETS, body)).expect(200)["status"]["phase"] == "Running"


async def test_the_status_subresource_writes_status_only(api: Api, make: Maker) -> None:
    made = await make.widget("w", {"size": 5}, labels={"a": "b"})
    patch = {
        "status": {"phase": "Running"},
        "spec": {"size": 9},
        "metadata": {"labels": {"a": "c"}, "finalizers": ["x/y"]},
    }
    body = (await api.patch(WIDGETS, make.namespace, "w", patch, sub="status")).expect(200)
    assert body["status"]["phase"] == "Running"
    assert body["spec"]["size"] == 5
    assert body["metadata"]["labels"] == {"a": "b"}
    assert "finalizers" not in body["metadata"]
    body["spec"]["size"] = 10
    body["status"]["phase"] = "Done"
    body = (await api.put(WIDGETS, body, sub="status")).expect(200)
    assert (body["spec"]["size"], body["status"]["phase"]) == (5, "Done")
    assert body["metadata"]["uid"] == made["metadata"]["uid"]
    got = (await api.get(WIDGETS, make.namespace, "w", sub="status")).expect(200)
    assert got == (await api.get(WIDGETS, make.namespace, "w")).expect(200)


async def test_a_new_pod_is_pending_whatever_it_says(api: Api, namespace: str) -> None:
    obj = unschedulable_pod(namespace, "p") | {"status": {"phase": "Running"}}
    assert (await api.create(PODS, obj)).expect(201)["status"]["phase"] == "Pending"


async def test_two_agents_merge_patch_disjoint_parts_of_status(api: Api, make: Maker) -> None:
    await make.widget()

    async def voice(key: str) -> None:
        for number in range(20):
            patch = {"status": {"agent": {key: number}}}
            (await api.patch(WIDGETS, make.namespace, "w", patch, sub="status")).expect(200)

    await asyncio.gather(*(voice(key) for key in "abc"))
    body = (await api.get(WIDGETS, make.namespace, "w")).expect(200)
    assert body["status"]["agent"] == {"a": 19, "b": 19, "c": 19}


async def test_a_stale_update_conflicts(api: Api, make: Maker) -> None:
    made = await make.widget()
    fresh = (await api.put(WIDGETS, {**made, "spec": {**made["spec"], "size": 6}})).expect(200)
    assert revision(fresh) > revision(made)
    status = (await api.put(WIDGETS, {**made, "spec": {**made["spec"], "size": 7}})).refused(409, "Conflict")
    assert status["message"] == (
        f'Operation cannot be fulfilled on {WIDGETS.group_resource} "w": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert status["details"] == {"name": "w", "group": WIDGETS.group, "kind": WIDGETS.plural}
    stale = {**made, "status": {"phase": "Running"}}
    (await api.put(WIDGETS, stale, sub="status")).refused(409, "Conflict")


async def test_a_custom_resource_is_not_updated_unconditionally(api: Api, make: Maker) -> None:
    made = await make.widget()
    del made["metadata"]["resourceVersion"]
    status = (await api.put(WIDGETS, made)).refused(422, "Invalid")
    assert causes(status) == {"metadata.resourceVersion": "FieldValueInvalid"}
    assert "must be specified for an update" in status["message"]


async def test_a_config_map_may_be_updated_unconditionally(api: Api, make: Maker) -> None:
    await make.configmap("c", {"a": "1"})
    body = (await api.put(CONFIGMAPS, configmap(make.namespace, "c", {"b": "2"}))).expect(200)
    assert body["data"] == {"b": "2"}


async def test_an_update_of_nothing_is_not_found(api: Api, make: Maker) -> None:
    made = await make.widget()
    await api.delete(WIDGETS, make.namespace, "w")
    assert (await api.put(WIDGETS, made)).expect(404, 409)["reason"] in ("NotFound", "Conflict")
    (await api.put(CONFIGMAPS, configmap(make.namespace, "none"))).refused(404, "NotFound")


async def test_an_update_for_another_uid_conflicts(api: Api, make: Maker) -> None:
    made = await make.widget()
    made["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    (await api.put(WIDGETS, made)).refused(409, "Conflict")


async def test_an_update_that_changes_nothing_writes_nothing(api: Api, make: Maker) -> None:
    made = await make.widget()
    assert revision((await api.put(WIDGETS, made)).expect(200)) == revision(made)


async def test_what_the_server_owns_survives_an_update(api: Api, make: Maker) -> None:
    made = await make.widget()
    obj = widget(make.namespace, "w", {"size": 9})
    obj["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    metadata = (await api.put(WIDGETS, obj)).expect(200)["metadata"]
    for key in ("uid", "creationTimestamp"):
        assert metadata[key] == made["metadata"][key]


async def test_no_increment_is_lost_to_concurrent_writers(api: Api, make: Maker) -> None:
    await make.configmap("counter", {"n": "0"})

    async def increment() -> None:
        for _ in range(8):
            while True:
                body = (await api.get(CONFIGMAPS, make.namespace, "counter")).expect(200)
                body["data"]["n"] = str(int(body["data"]["n"]) + 1)
                if (await api.put(CONFIGMAPS, body)).status == 200:
                    break

    await asyncio.gather(*(increment() for _ in range(6)))
    assert (await api.get(CONFIGMAPS, make.namespace, "counter")).body["data"]["n"] == "48"


async def test_immutable_config_maps_stay(api: Api, namespace: str) -> None:
    obj = configmap(namespace, "c", {"a": "1"}) | {"immutable": True}
    (await api.create(CONFIGMAPS, obj)).expect(201)
    (await api.patch(CONFIGMAPS, namespace, "c", {"data": {"a": "2"}})).refused(422, "Invalid")


@pytest.mark.parametrize("method", ["create", "put", "patch", "delete"])
async def test_a_dry_run_answers_and_stores_nothing(api: Api, make: Maker, method: str) -> None:
    made = await make.widget("w", {"size": 5})
    dry = {"dryRun": "All"}
    if method == "create":
        body = (await api.create(WIDGETS, widget(make.namespace, "v"), **dry)).expect(201)
        assert body["spec"]["size"] == 3
    elif method == "put":
        body = (await api.put(WIDGETS, {**made, "spec": {**made["spec"], "size": 6}}, **dry)).expect(200)
        assert body["spec"]["size"] == 6
    elif method == "patch":
        reply = await api.patch(WIDGETS, make.namespace, "w", {"spec": {"size": 6}}, **dry)
        assert reply.expect(200)["spec"]["size"] == 6
    else:
        (await api.delete(WIDGETS, make.namespace, "w", **dry)).expect(200)
    listed = (await api.list(WIDGETS, make.namespace)).expect(200)
    assert names(listed) == ["w"]
    assert listed["items"][0]["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_dry_run_refuses_what_would_be_refused(api: Api, make: Maker) -> None:
    await make.widget()
    (await api.create(WIDGETS, widget(make.namespace, "w"), dryRun="All")).refused(409, "AlreadyExists")
    bad = widget(make.namespace, "v", {"size": 0})
    (await api.create(WIDGETS, bad, dryRun="All")).refused(422, "Invalid")
    reply = await api.create(WIDGETS, widget(make.namespace, "v"), dryRun="Some")
    assert "dryRun" in reply.expect(400, 422)["message"]


async def test_kinds_defaults_are_those_people_expect(api: Api, namespace: str) -> None:
    spec = (await api.create(PODS, unschedulable_pod(namespace, "p", container()))).expect(201)["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["schedulerName"] == "default-scheduler"
    main = spec["containers"][0]
    assert main["imagePullPolicy"] == "IfNotPresent"
    assert main["terminationMessagePath"] == "/dev/termination-log"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [container("a"), container("a")]}, "spec.containers[1].name"),
        ({"containers": [container("Not_Valid")]}, "spec.containers[0].name"),
    ],
    ids=["restart-policy", "image", "same-name", "bad-name"],
)
async def test_a_bad_pod_is_refused_with_the_path(api: Api, namespace: str, change: JSON, field: str) -> None:
    obj = manifest(PODS, namespace, "p", spec={"containers": [container()], **change})
    assert field in causes((await api.create(PODS, obj)).refused(422, "Invalid"))


async def test_there_are_the_namespaces_of_every_cluster(api: Api) -> None:
    found = (await api.list(NAMESPACES)).expect(200)
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= set(names(found))


async def test_a_secrets_plain_text_is_kept_as_data(api: Api, namespace: str) -> None:
    secret = manifest(SECRETS, namespace, "s", data={"a": "b2xk", "b": "Yg=="}, stringData={"a": "new"})
    (await api.create(SECRETS, secret)).expect(201)
    stored = (await api.get(SECRETS, namespace, "s")).expect(200)
    assert "stringData" not in stored
    assert stored["data"] == {"a": "bmV3", "b": "Yg=="}
