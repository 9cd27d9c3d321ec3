"""CustomResourceDefinitions: served at once, changed live, refused when they are wrong."""

from __future__ import annotations

import copy

import pytest

from tests.conformance import resources
from tests.conformance.objects import widget_crd
from tests.localcluster.apiserver.api import CRDS, WIDGETS, Api, widget

pytestmark = pytest.mark.real

CRD = f"{CRDS}/{widget_crd()['metadata']['name']}"
OLDER = f"{resources.WIDGETS.group}/v1beta1"


async def test_several_versions_show_the_same_objects(api: Api) -> None:
    definition = widget_crd()
    older = copy.deepcopy(definition["spec"]["versions"][0])
    definition["spec"]["versions"].append({**older, "name": "v1beta1", "storage": False})
    await api.created(CRDS, definition)
    await api.created(WIDGETS, widget("one"))
    old_path = WIDGETS.replace("/v1alpha1/", "/v1beta1/")
    shown = (await api.get(f"{old_path}/one")).body
    assert shown["apiVersion"] == OLDER
    patched = (await api.patch(f"{old_path}/one", {"spec": {"size": 5}})).body
    assert (patched["apiVersion"], patched["metadata"]["generation"]) == (OLDER, 2)
    assert (await api.get(f"{WIDGETS}/one")).body["spec"]["size"] == 5
    async with api.watch(old_path) as events:
        assert (await events.next())["object"]["apiVersion"] == OLDER
    definition["spec"]["versions"].pop()
    await api.patch(CRD, {"spec": definition["spec"]})
    assert (await api.get(old_path)).status == 404
    assert (await api.get(WIDGETS)).names == ["one"]


async def test_names_and_scope_are_fixed(widgets: Api) -> None:
    answer = await widgets.patch(CRD, {"spec": {"scope": "Cluster"}})
    assert answer.status == 422 and "spec.scope" in answer.message


async def test_a_definition_must_keep_the_versions_that_were_stored(api: Api) -> None:
    definition = widget_crd()
    await api.created(CRDS, definition)
    (version,) = definition["spec"]["versions"]
    version["name"] = "v2"
    answer = await api.patch(CRD, {"spec": definition["spec"]})
    assert answer.status == 422
    assert {cause["field"] for cause in answer.body["details"]["causes"]} == {"status.storedVersions[0]"}


async def test_a_changed_schema_counts_from_then_on_and_a_deleted_one_takes_its_objects(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("old"))
    definition = widget_crd()
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["since"] = {"type": "string", "default": "now"}
    assert (await widgets.patch(CRD, {"spec": definition["spec"]})).body["metadata"]["generation"] == 2
    assert (await widgets.get(f"{WIDGETS}/old")).body["spec"]["since"] == "now"
    await widgets.delete(CRD)
    await widgets.eventually(CRD, lambda reply: reply.status == 404)
    assert (await widgets.get(WIDGETS)).status == 404
    await widgets.created(CRDS, widget_crd())
    assert (await widgets.get(WIDGETS)).names == []


async def test_what_cannot_be_served_is_refused(api: Api) -> None:
    definition = widget_crd()
    definition["metadata"]["name"] = f"gadgets.{resources.WIDGETS.group}"
    version = definition["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for spoiled in (
        {"x-kubernetes-validations": [{"rule": "self.size >"}]},
        {"properties": {"a": {"pattern": "("}}},
    ):
        version["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec | spoiled
        answer = await api.post(CRDS, definition)
        fields = [cause["field"] for cause in answer.body["details"]["causes"]]
        assert fields == ["metadata.name", "spec.versions[0].schema.openAPIV3Schema"]
