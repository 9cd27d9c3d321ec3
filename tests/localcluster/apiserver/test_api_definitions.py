"""CustomResourceDefinitions: served at once, changed live, refused when they are wrong."""

from __future__ import annotations

import pytest

from tests.conformance import resources
from tests.conformance.objects import widget_crd
from tests.localcluster.apiserver.api import CRDS, WIDGETS, Api, widget

pytestmark = pytest.mark.real

CRD = f"{CRDS}/{widget_crd()['metadata']['name']}"


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
