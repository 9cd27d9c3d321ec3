"""Creating, reading, changing and deleting objects, as any Kubernetes client sees it."""

import asyncio

import pytest

from localcluster.apiserver.http import shown_warnings
from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    WIDGETS,
    Api,
    config_map,
    pod,
    widget,
)

pytestmark = pytest.mark.real


async def test_a_created_object_gets_identity_and_version(api: Api) -> None:
    created = await api.created(CONFIG_MAPS, config_map("one"))
    metadata = created["metadata"]
    assert metadata["uid"] and metadata["creationTimestamp"] and int(metadata["resourceVersion"]) > 0
    assert metadata["namespace"] == "default"
    assert (await api.get(f"{CONFIG_MAPS}/one")).body == created


async def test_creating_twice_is_already_exists(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    answer = await api.post(CONFIG_MAPS, config_map("one"))
    assert (answer.code, answer.reason) == (409, "AlreadyExists")
    assert answer.message == 'configmaps "one" already exists'
    assert answer.body["details"] == {"name": "one", "kind": "configmaps"}


async def test_what_does_not_exist_is_not_found(widgets: Api) -> None:
    answer = await widgets.get(f"{WIDGETS}/none")
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert answer.message == 'widgets.example.com "none" not found'
    assert answer.body["details"] == {"name": "none", "group": "example.com", "kind": "widgets"}
    assert (await widgets.get("/apis/example.com/v1/namespaces/default/gadgets")).code == 404


async def test_generate_name_makes_distinct_names(api: Api) -> None:
    body = config_map("ignored")
    del body["metadata"]["name"]
    body["metadata"]["generateName"] = "set-"
    names = [(await api.created(CONFIG_MAPS, body))["metadata"]["name"] for _ in range(3)]
    assert len(set(names)) == 3 and all(name.startswith("set-") for name in names)


async def test_a_missing_namespace_and_a_foreign_one_are_refused(api: Api) -> None:
    answer = await api.post("/api/v1/namespaces/nowhere/configmaps", config_map("one"))
    assert (answer.code, answer.message) == (404, 'namespaces "nowhere" not found')
    answer = await api.post(CONFIG_MAPS, config_map("one", namespace="kube-system"))
    assert answer.code == 400 and "does not match the namespace sent on the request" in answer.message


async def test_bad_names_and_labels_are_refused_with_their_path(api: Api) -> None:
    answer = await api.post(CONFIG_MAPS, config_map("Not_A_Name", labels={"a": "b c"}))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == [
        "metadata.name",
        "metadata.labels",
    ]
    assert answer.message.startswith(
        'ConfigMap "Not_A_Name" is invalid: [metadata.name: Invalid value: "Not_A_Name"'
    )


async def test_a_body_of_another_kind_is_refused(api: Api, widgets: Api) -> None:
    assert (await api.post(CONFIG_MAPS, pod("one"))).code == 400
    answer = await widgets.post(WIDGETS, {"metadata": {"name": "one"}, "spec": {}})
    assert answer.code == 400 and "is missing" in answer.message
    assert (await api.post(CONFIG_MAPS, b"{")).code == 400
    assert (await api.post(CONFIG_MAPS, [])).code == 400


async def test_protobuf_is_refused_in_a_sentence(api: Api) -> None:
    answer = await api.post(CONFIG_MAPS, b"k8s\0", content_type="application/vnd.kubernetes.protobuf")
    assert answer.code == 415 and "kubectl apply -f" in answer.message


async def test_a_stale_update_conflicts_and_changes_nothing(widgets: Api) -> None:
    first = await widgets.created(WIDGETS, widget("one"))
    second = await widgets.put(f"{WIDGETS}/one", {**first, "spec": {"size": 2}})
    assert second.code == 200
    answer = await widgets.put(f"{WIDGETS}/one", {**first, "spec": {"size": 4}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message.startswith(
        'Operation cannot be fulfilled on widgets.example.com "one": the object has'
    )
    stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "spec": {"size": 5}}
    assert (await widgets.patch(f"{WIDGETS}/one", stale)).code == 409
    assert (await widgets.get(f"{WIDGETS}/one")).body["spec"]["size"] == 2


async def test_a_custom_resource_must_be_updated_with_its_version(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one"))
    answer = await widgets.put(f"{WIDGETS}/one", widget("one", {"size": 2}))
    assert answer.code == 422 and "must be specified for an update" in answer.message


async def test_an_update_that_changes_nothing_keeps_the_version(widgets: Api) -> None:
    created = await widgets.created(WIDGETS, widget("one"))
    assert (await widgets.put(f"{WIDGETS}/one", created)).body == created
    assert (await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 1}})).body == created


async def test_generation_counts_changes_of_the_spec_alone(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one"))
    labelled = await widgets.patch(f"{WIDGETS}/one", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.body["metadata"]["generation"] == 1
    reported = await widgets.patch(f"{WIDGETS}/one/status", {"status": {"phase": "Up"}})
    assert reported.body["metadata"]["generation"] == 1
    changed = await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 9}})
    assert changed.body["metadata"]["generation"] == 2


async def test_status_and_the_rest_are_written_apart(widgets: Api) -> None:
    created = await widgets.created(WIDGETS, {**widget("one"), "status": {"phase": "Forged"}})
    assert "status" not in created
    both = {"spec": {"size": 7}, "status": {"phase": "Up"}, "metadata": {"labels": {"a": "b"}}}
    by_status = (await widgets.patch(f"{WIDGETS}/one/status", both)).body
    assert (by_status["spec"]["size"], by_status["status"]) == (1, {"phase": "Up"})
    assert "labels" not in by_status["metadata"]
    by_main = (await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 7}, "status": {"phase": "Down"}})).body
    assert (by_main["spec"]["size"], by_main["status"]) == (7, {"phase": "Up"})
    replaced = (
        await widgets.put(f"{WIDGETS}/one/status", {**by_main, "spec": {"size": 8}, "status": {}})
    ).body
    assert (replaced["spec"]["size"], replaced["status"]) == (7, {})


async def test_server_fields_cannot_be_forged(api: Api) -> None:
    forged = config_map("one", uid="mine", creationTimestamp="2000-01-01T00:00:00Z")
    created = await api.created(CONFIG_MAPS, forged)
    assert (await api.post(CONFIG_MAPS, config_map("two", resourceVersion="7"))).code == 400
    assert created["metadata"]["uid"] != "mine"
    answer = await api.patch(f"{CONFIG_MAPS}/one", {"metadata": {"uid": "other"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    patch = {"metadata": {"creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7}}
    assert (await api.patch(f"{CONFIG_MAPS}/one", patch)).body == created


async def test_the_three_patch_types(api: Api, widgets: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    path = f"{CONFIG_MAPS}/one"
    assert (await api.patch(path, {"data": {"a": None, "c": "d"}}, MERGE)).body["data"] == {"c": "d"}
    operations = [
        {"op": "test", "path": "/data/c", "value": "d"},
        {"op": "add", "path": "/data/e", "value": "f"},
    ]
    assert (await api.patch(path, operations, JSON_PATCH)).body["data"] == {"c": "d", "e": "f"}
    await api.created(PODS, pod("one"))
    strategic = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    patched = (await api.patch(f"{PODS}/one", strategic, STRATEGIC)).body
    assert [(each["name"], each["image"]) for each in patched["spec"]["containers"]] == [
        ("main", "busybox:2")
    ]
    await widgets.created(WIDGETS, widget("one"))
    answer = await widgets.patch(f"{WIDGETS}/one", {"spec": {}}, STRATEGIC)
    assert answer.code == 415 and "application/merge-patch+json" in answer.message


async def test_a_json_patch_that_does_not_fit_leaves_the_object(api: Api) -> None:
    created = await api.created(CONFIG_MAPS, config_map("one"))
    operations = [
        {"op": "replace", "path": "/data/a", "value": "x"},
        {"op": "test", "path": "/data/a", "value": "no"},
    ]
    answer = await api.patch(f"{CONFIG_MAPS}/one", operations, JSON_PATCH)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert (await api.get(f"{CONFIG_MAPS}/one")).body == created


async def test_dry_run_answers_and_writes_nothing(widgets: Api) -> None:
    assert (await widgets.post(WIDGETS, widget("one"), dryRun="All")).code == 201
    assert (await widgets.get(f"{WIDGETS}/one")).code == 404
    created = await widgets.created(WIDGETS, widget("one"))
    changed = await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 8}}, dryRun="All")
    assert changed.body["spec"]["size"] == 8
    assert (await widgets.delete(f"{WIDGETS}/one", dryRun="All")).code == 200
    assert (await widgets.get(f"{WIDGETS}/one")).body == created
    assert (await widgets.post(WIDGETS, widget("two"), dryRun="Some")).code == 422


async def test_unknown_fields_are_refused_warned_of_or_dropped(widgets: Api) -> None:
    odd = widget("one", {"size": 1, "shape": "round"})
    answer = await widgets.post(WIDGETS, odd, fieldValidation="Strict")
    assert answer.code == 400 and 'unknown field "spec.shape"' in answer.message
    answer = await widgets.post(WIDGETS, odd, fieldValidation="Warn")
    assert answer.code == 201 and answer.body["spec"] == {"size": 1}
    assert answer.headers["Warning"] == '299 - "unknown field \\"spec.shape\\""'
    strange = widget("strange", {'two\nlines "': 1})
    answer = await widgets.post(WIDGETS, strange, fieldValidation="Warn")
    assert answer.code == 201 and "two lines" in answer.headers["Warning"]
    answer = await widgets.post(WIDGETS, {**odd, "metadata": {"name": "two"}}, fieldValidation="Ignore")
    assert answer.code == 201 and "Warning" not in answer.headers


async def test_schemas_default_and_validate(widgets: Api) -> None:
    assert (await widgets.created(WIDGETS, widget("one", {})))["spec"] == {"size": 3}
    answer = await widgets.post(WIDGETS, widget("two", {"size": -1}))
    assert answer.code == 422
    assert answer.body["details"]["causes"][0]["field"] == "spec.size"
    answer = await widgets.patch(f"{WIDGETS}/one", {"spec": {"colour": "beige"}})
    assert answer.code == 422 and "no beige, please" in answer.message


async def test_scale_reads_and_writes_replicas(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one", {"replicas": 2}))
    scale = (await widgets.get(f"{WIDGETS}/one/scale")).body
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["replicas"]) == ("Scale", 2, 0)
    scale["spec"]["replicas"] = 5
    assert (await widgets.put(f"{WIDGETS}/one/scale", scale)).body["spec"]["replicas"] == 5
    assert (await widgets.patch(f"{WIDGETS}/one/scale", {"spec": {"replicas": 6}})).code == 200
    stored = (await widgets.get(f"{WIDGETS}/one")).body
    assert (stored["spec"]["replicas"], stored["metadata"]["generation"]) == (6, 3)
    assert (await widgets.put(f"{WIDGETS}/one/scale", scale)).code == 409
    assert (await widgets.patch(f"{WIDGETS}/one/scale", {"spec": {"replicas": -1}})).code == 422


async def test_concurrent_json_patches_lose_nothing(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    answers = await asyncio.gather(
        *(api.patch(f"{CONFIG_MAPS}/one", {"data": {f"key-{number}": "x"}}) for number in range(40))
    )
    assert {answer.code for answer in answers} == {200}
    assert len((await api.get(f"{CONFIG_MAPS}/one")).body["data"]) == 41


async def test_both_event_apis_show_the_same_events(api: Api) -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "one"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started",
        "note": "it started",
        "type": "Normal",
        "action": "Start",
        "reportingController": "test",
        "reportingInstance": "test-1",
    }
    await api.created("/apis/events.k8s.io/v1/namespaces/default/events", event)
    core = (await api.get("/api/v1/namespaces/default/events/one")).body
    assert (core["apiVersion"], core["message"], core["involvedObject"]["name"]) == ("v1", "it started", "p")
    assert (await api.get("/apis/events.k8s.io/v1/namespaces/default/events/one")).body[
        "note"
    ] == "it started"


def test_warnings_are_cut_when_there_are_many() -> None:
    few = ["a", "b", "a"]
    assert list(shown_warnings(few)) == ["a", "b"]
    many = list(shown_warnings([f"{number} {'x' * 1000}" for number in range(100)]))
    assert len(many) == 16 and all(len(each) == 256 for each in many)
