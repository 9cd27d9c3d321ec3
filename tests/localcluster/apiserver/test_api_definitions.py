"""CustomResourceDefinitions: served at once, changed live, refused when they are wrong."""

from __future__ import annotations

import copy

from tests.localcluster.apiserver.api import CRDS, WIDGETS, Api, widget, widget_definition

CRD = f"{CRDS}/widgets.example.com"


async def test_a_definition_is_served_everywhere_at_once(api: Api) -> None:
    created = await api.created(CRDS, widget_definition())
    conditions = {each["type"]: each["status"] for each in created["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert created["status"]["acceptedNames"]["listKind"] == "WidgetList"
    resources = (await api.get("/apis/example.com/v1")).body["resources"]
    assert {entry["name"] for entry in resources} == {"widgets", "widgets/status", "widgets/scale"}
    aggregated = await api.get(
        "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )
    assert "example.com" in [item["metadata"].get("name") for item in aggregated.body["items"]]
    assert "apis/example.com/v1" in (await api.get("/openapi/v3")).body["paths"]
    assert (await api.get("/openapi/v3/apis/example.com/v1")).code == 200
    assert (await api.get("/openapi/v2")).code == 404
    assert (await api.get(WIDGETS)).body["kind"] == "WidgetList"


async def test_a_changed_schema_counts_from_the_next_write(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one", {"size": 4}))
    changed = widget_definition()
    version = changed["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]["maximum"] = 3
    version["additionalPrinterColumns"] = [{"name": "Big", "type": "integer", "jsonPath": ".spec.size"}]
    assert (await widgets.patch(CRD, {"spec": changed["spec"]})).body["metadata"]["generation"] == 2
    assert (await widgets.post(WIDGETS, widget("two", {"size": 4}))).code == 422
    kept = await widgets.patch(f"{WIDGETS}/one", {"metadata": {"labels": {"a": "b"}}})
    assert kept.code == 200, "what was valid before may stay"
    table = await widgets.get(WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table.body["columnDefinitions"]] == ["Name", "Big"]


async def test_several_versions_show_the_same_objects(api: Api) -> None:
    definition = widget_definition()
    older = copy.deepcopy(definition["spec"]["versions"][0])
    definition["spec"]["versions"].append({**older, "name": "v1beta1", "storage": False})
    await api.created(CRDS, definition)
    await api.created(WIDGETS, widget("one"))
    old_path = WIDGETS.replace("/v1/", "/v1beta1/")
    shown = (await api.get(f"{old_path}/one")).body
    assert shown["apiVersion"] == "example.com/v1beta1"
    patched = (await api.patch(f"{old_path}/one", {"spec": {"size": 5}})).body
    assert (patched["apiVersion"], patched["metadata"]["generation"]) == ("example.com/v1beta1", 2)
    assert (await api.get(f"{WIDGETS}/one")).body["spec"]["size"] == 5
    async with api.watch(old_path) as events:
        assert (await events.next())["object"]["apiVersion"] == "example.com/v1beta1"
    definition["spec"]["versions"].pop()
    await api.patch(CRD, {"spec": definition["spec"]})
    assert (await api.get(old_path)).code == 404
    assert (await api.get(WIDGETS)).names == ["one"]


async def test_a_wrong_definition_is_refused_with_its_faults(api: Api) -> None:
    definition = widget_definition()
    definition["metadata"]["name"] = "gadgets.example.com"
    definition["spec"]["versions"][0]["storage"] = False
    answer = await api.post(CRDS, definition)
    fields = [cause["field"] for cause in answer.body["details"]["causes"]]
    assert answer.code == 422 and {"metadata.name", "spec.versions"} <= set(fields)
    definition = widget_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": "self.size >"}]
    answer = await api.post(CRDS, definition)
    assert answer.code == 422 and "compilation failed" in answer.message


async def test_names_and_scope_are_fixed(widgets: Api) -> None:
    answer = await widgets.patch(CRD, {"spec": {"scope": "Cluster"}})
    assert answer.code == 422 and "spec.scope" in answer.message
