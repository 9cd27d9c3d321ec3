"""Server-side apply: owners of fields, conflicts between them, and what `--force-conflicts` takes."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import CONFIGMAPS

from .conftest import Maker
from .kubectl import Kubectl
from .objects import configmap, widget
from .rawapi import APPLY_PATCH, Api
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_server_side_apply_sets_drops_and_leaves_what_is_others(api: Api, make: Maker) -> None:
    async def apply(manager: str, data: dict[str, str], status: int = 200, **query: str) -> JSON:
        obj = configmap(make.namespace, "applied") | {"data": data}
        query = {"fieldManager": manager, "force": "true"} | query
        place = (CONFIGMAPS, make.namespace, "applied")
        return (await api.patch(*place, obj, content_type=APPLY_PATCH, **query)).expect(status)

    await apply("a", {"x": "1", "y": "1"}, 201, dryRun="All")
    (await api.get(CONFIGMAPS, make.namespace, "applied")).refused(404, "NotFound")
    first = await apply("a", {"x": "1", "y": "1"}, 201)
    (entry,) = first["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("a", "Apply")
    assert entry["fieldsV1"]["f:data"] == {"f:x": {}, "f:y": {}}
    assert (await apply("a", {"x": "1", "y": "1"}))["metadata"] == first["metadata"]
    await api.patch(CONFIGMAPS, make.namespace, "applied", {"data": {"z": "1"}})
    await apply("b", {"y": "1"})
    last = await apply("a", {"x": "2"})
    assert last["data"] == {"x": "2", "y": "1", "z": "1"}, "y is still b's, and z whoever's"
    assert (await apply("b", {}))["data"] == {"x": "2", "z": "1"}
    nobody = await api.patch(CONFIGMAPS, make.namespace, "x", {}, content_type=APPLY_PATCH, force="true")
    assert nobody.status in (400, 422) and "fieldManager" in nobody.text
    place, query = (CONFIGMAPS, make.namespace, "applied"), {"fieldManager": "a", "force": "true"}
    listed = await api.patch(*place, first, content_type=APPLY_PATCH, **query)
    assert "managedFields must be nil" in listed.refused(400, "BadRequest")["message"]


async def apply(
    api: Api, obj: JSON, manager: str, resource: Any = CONFIGMAPS, *, sub: str = "", **query: str
) -> Any:
    place = (resource, obj["metadata"]["namespace"], obj["metadata"]["name"])
    return await api.patch(*place, obj, sub=sub, content_type=APPLY_PATCH, fieldManager=manager, **query)


async def test_an_apply_does_not_take_what_another_has_applied(api: Api, make: Maker) -> None:
    (await apply(api, configmap(make.namespace, "c", {"x": "1", "y": "1"}), "a")).expect(201)
    wanted = configmap(make.namespace, "c", {"x": "2", "z": "1"})
    refused = (await apply(api, wanted, "b")).refused(409, "Conflict")
    assert refused["message"] == 'Apply failed with 1 conflict: conflict with "a": .data.x'
    (cause,) = refused["details"]["causes"]
    assert cause == {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".data.x"}
    assert (await api.get(CONFIGMAPS, make.namespace, "c")).body["data"] == {"x": "1", "y": "1"}

    forced = (await apply(api, wanted, "b", force="true")).expect(200)
    assert forced["data"] == {"x": "2", "y": "1", "z": "1"}
    owned = {entry["manager"]: entry["fieldsV1"]["f:data"] for entry in forced["metadata"]["managedFields"]}
    assert owned == {"a": {"f:y": {}}, "b": {"f:x": {}, "f:z": {}}}


async def test_kubectl_apply_server_side(kubectl: Kubectl, namespace: str) -> None:
    async def server_side(obj: JSON, *more: str) -> str:
        return (await kubectl.run("apply", "--server-side", *more, "-f", "-", stdin=obj)).stdout

    first = widget(namespace, "w", {"size": 5})
    assert "serverside-applied" in await server_side(first)
    await kubectl.run(
        "patch", WIDGETS.plural, "w", "--type=merge", '-p={"spec":{"size":7}}', namespace=namespace
    )
    said = await kubectl.refused("apply", "--server-side", "-f", "-", stdin=first)
    assert "Apply failed with 1 conflict" in said and ".spec.size" in said and "--force-conflicts" in said
    assert "serverside-applied" in await server_side(first, "--force-conflicts")
