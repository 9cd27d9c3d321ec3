"""CustomResourceDefinitions: served at once, changed live, refused when they are wrong."""

from __future__ import annotations

import copy

import pytest

from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    CRDS,
    WIDGETS,
    Api,
    config_map,
    widget,
    widget_definition,
)

pytestmark = pytest.mark.real

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
    assert (await api.get("/openapi/v2")).code == 200  # empty: kubectl falls back to it for unknown kinds
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


async def test_a_definition_must_keep_the_versions_that_were_stored(api: Api) -> None:
    definition = widget_definition()
    await api.created(CRDS, definition)
    (version,) = definition["spec"]["versions"]
    version["name"] = "v2"
    answer = await api.patch(CRD, {"spec": definition["spec"]})
    assert answer.code == 422
    assert {cause["field"] for cause in answer.body["details"]["causes"]} == {"status.storedVersions[0]"}


async def test_a_default_that_its_rule_refuses_is_refused_with_kubernetes_words(api: Api) -> None:
    definition = widget_definition()
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec |= {
        "default": {},
        "x-kubernetes-validations": [{"rule": "has(self.size)", "message": "say the size"}],
    }
    answer = await api.post(CRDS, definition)
    assert answer.code == 422
    (cause,) = answer.body["details"]["causes"]
    assert cause["field"] == "spec.validation.openAPIV3Schema.properties[spec].default"
    assert cause["message"] == "Invalid value: say the size"


async def test_methods_fit_the_path(widgets: Api) -> None:
    """Kubernetes routes its own kinds by path and method; those of CRDs it does not."""
    one = await widgets.created(CONFIG_MAPS, config_map("one"))
    for answer in (await widgets.put(CONFIG_MAPS, one), await widgets.post(f"{CONFIG_MAPS}/one", one)):
        assert (answer.code, answer.reason) == (405, "MethodNotAllowed")
        assert "GET" in answer.headers["Allow"]
    await widgets.created(WIDGETS, widget("one"))
    assert (await widgets.put(WIDGETS, widget("one"))).code == 400
    assert (await widgets.post(f"{WIDGETS}/one", widget("one"))).reason == "AlreadyExists"


async def test_lists_of_custom_kinds_always_say_how_to_go_on(widgets: Api) -> None:
    assert (await widgets.get(WIDGETS)).body["metadata"]["continue"] == ""
    assert "continue" not in (await widgets.get(CONFIG_MAPS)).body["metadata"]
    table = await widgets.get(WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert "continue" not in table.body["metadata"]


async def test_what_keeps_rules_from_being_asked_is_said(api: Api) -> None:
    definition = widget_definition()
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"] = [{"rule": "!has(self.size) || self.size != 2"}]
    await api.created(CRDS, definition)
    nameless = widget("x")
    del nameless["metadata"]["name"]
    for obj in (nameless, widget("x", {"size": "big"})):
        causes = (await api.post(WIDGETS, obj)).body["details"]["causes"]
        assert causes[-1]["field"] == "<nil>"
        assert "some validation rules were not checked" in causes[-1]["message"]
    assert len((await api.post(WIDGETS, widget("x", {"size": 2}))).body["details"]["causes"]) == 1
