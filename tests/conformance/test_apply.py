"""Server-side apply: owners of fields, conflicts between them, and what `--force-conflicts` takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import configmap, manifest, widget
from .rawapi import APPLY_PATCH, STRATEGIC_PATCH, Api
from .resources import CONFIGMAPS, DEPLOYMENTS, WIDGETS

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


def managers(obj: JSON) -> list[tuple[str, str, str]]:
    entries = obj["metadata"]["managedFields"]
    return sorted((entry["manager"], entry["operation"], entry.get("subresource", "")) for entry in entries)


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


async def test_the_same_value_has_two_owners_and_goes_with_the_last(api: Api, make: Maker) -> None:
    for manager in ("a", "b"):
        (await apply(api, configmap(make.namespace, "c", {"x": "1"}), manager)).expect(200, 201)
    empty = configmap(make.namespace, "c")
    assert (await apply(api, empty, "a")).expect(200)["data"] == {"x": "1"}
    assert not (await apply(api, empty, "b")).expect(200).get("data")


async def test_other_writes_make_owners_too(api: Api, make: Maker) -> None:
    (await apply(api, configmap(make.namespace, "c", {"x": "1", "y": "1"}), "a")).expect(201)
    change = {"data": {"x": "2", "z": "2"}}
    query = {"content_type": STRATEGIC_PATCH, "fieldManager": "editor"}
    patched = (await api.patch(CONFIGMAPS, make.namespace, "c", change, **query)).expect(200)
    assert managers(patched) == [("a", "Apply", ""), ("editor", "Update", "")]
    refused = await apply(api, configmap(make.namespace, "c", {"x": "1", "y": "1", "z": "1"}), "a")
    said = refused.refused(409, "Conflict")["message"]
    assert re.sub(r" at [^:]+Z", "", said) == (
        'Apply failed with 2 conflicts: conflicts with "editor" using v1:\n- .data.x\n- .data.z'
    )
    await api.patch(CONFIGMAPS, make.namespace, "c", {"data": {"z": None}}, **query)
    refused = await apply(api, configmap(make.namespace, "c", {"x": "1", "y": "1", "z": "1"}), "a")
    assert ".data.z" not in refused.refused(409, "Conflict")["message"], "nobody owns what is gone"


async def test_an_apply_of_what_nobody_has_applied_conflicts_where_it_differs(api: Api, make: Maker) -> None:
    await make.configmap("c", data={"x": "1", "y": "1"})
    (await apply(api, configmap(make.namespace, "c", {"x": "1"}), "a")).expect(200)
    refused = await apply(api, configmap(make.namespace, "c", {"y": "2"}), "a")
    message = refused.refused(409, "Conflict")["message"]
    assert message.startswith("Apply failed with 1 conflict: conflict with ") and ".data.y" in message


async def test_elements_of_lists_have_owners_of_their_own(api: Api, make: Maker) -> None:
    def containers(*names: str, image: str = "x:1") -> JSON:
        pod = {"containers": [{"name": name, "image": image} for name in names]}
        labels = {"matchLabels": {"app": "d"}}
        template = {"metadata": {"labels": {"app": "d"}}, "spec": pod}
        spec = {"replicas": 0, "selector": labels, "template": template}
        return manifest(DEPLOYMENTS, make.namespace, "d", spec=spec)

    def names(obj: JSON) -> list[str]:
        return [each["name"] for each in obj["spec"]["template"]["spec"]["containers"]]

    (await apply(api, containers("one"), "a", DEPLOYMENTS)).expect(201)
    both = (await apply(api, containers("two"), "b", DEPLOYMENTS)).expect(200)
    assert names(both) == ["one", "two"]
    refused = await apply(api, containers("one", image="x:2"), "b", DEPLOYMENTS)
    path = '.spec.template.spec.containers[name="one"].image'
    assert path in refused.refused(409, "Conflict")["message"]
    assert names((await apply(api, containers("one"), "b", DEPLOYMENTS)).expect(200)) == ["one"]


async def test_a_custom_kind_is_applied_as_its_schema_says(api: Api, make: Maker) -> None:
    async def applied(manager: str, status: int, **spec: Any) -> JSON:
        reply = await apply(api, widget(make.namespace, "w", spec), manager, WIDGETS)
        return reply.expect(status)["spec"]

    first = await applied("a", 201, tags=["p", "q"], parts=[{"name": "one", "count": 1}])
    assert first["tags"] == ["p", "q"]
    second = await applied("b", 200, tags=["r"], parts=[{"name": "two", "count": 2}])
    assert second["tags"] == ["p", "q", "r"] and [each["name"] for each in second["parts"]] == ["one", "two"]
    third = await applied("a", 200, tags=["q"])
    assert third["tags"] == ["q", "r"] and [each["name"] for each in third["parts"]] == ["two"]
    reply = await apply(api, widget(make.namespace, "w", {"size": "large"}), "a", WIDGETS)
    assert reply.status >= 400 and "size" in reply.text


async def test_a_status_is_applied_by_way_of_its_own(api: Api, make: Maker) -> None:
    obj = widget(make.namespace, "w") | {"status": {"replicas": 3}}
    made = (await apply(api, obj, "a", WIDGETS)).expect(201)
    assert "status" not in made and "f:status" not in made["metadata"]["managedFields"][0]["fieldsV1"]
    told = (await apply(api, obj, "b", WIDGETS, sub="status")).expect(200)
    assert told["status"] == {"replicas": 3}
    assert managers(told) == [("a", "Apply", ""), ("b", "Apply", "status")]
    (await apply(api, widget(make.namespace, "no"), "b", WIDGETS, sub="status")).refused(404, "NotFound")


async def test_what_scale_writes_has_scale_as_its_owner(api: Api, make: Maker) -> None:
    (await apply(api, widget(make.namespace, "w", {"replicas": 2}), "a", WIDGETS)).expect(201)
    change = {"spec": {"replicas": 5}}
    query = {"sub": "scale", "fieldManager": "scaler"}
    (await api.patch(WIDGETS, make.namespace, "w", change, **query)).expect(200)
    refused = await apply(api, widget(make.namespace, "w", {"replicas": 2}), "a", WIDGETS)
    message = refused.refused(409, "Conflict")["message"]
    assert 'conflict with "scaler" with subresource "scale"' in message and ".spec.replicas" in message


@pytest.mark.parametrize("content_type", [STRATEGIC_PATCH, "application/merge-patch+json"])
async def test_force_is_for_applies_alone(api: Api, make: Maker, content_type: str) -> None:
    await make.configmap("c")
    patch = {"data": {"x": "1"}}
    reply = await api.patch(CONFIGMAPS, make.namespace, "c", patch, content_type=content_type, force="true")
    assert "force: Forbidden" in reply.refused(422, "Invalid")["message"]


async def test_a_field_that_the_kind_lacks_is_never_applied(api: Api, make: Maker) -> None:
    for resource, obj in (
        (CONFIGMAPS, configmap(make.namespace, "c") | {"dat": {}}),
        (WIDGETS, widget(make.namespace, "c", {"sise": 1})),
    ):
        reply = await apply(api, obj, "a", resource, fieldValidation="Ignore")
        assert reply.status >= 400 and "field not declared in schema" in reply.text


async def test_an_element_comes_once(api: Api, make: Maker) -> None:
    obj = widget(make.namespace, "w", {"parts": [{"name": "one"}, {"name": "one"}]})
    reply = await apply(api, obj, "a", WIDGETS)
    assert reply.status >= 400 and 'duplicate entries for key [name="one"]' in reply.body["message"]


async def test_a_client_hands_managed_fields_back(api: Api, make: Maker) -> None:
    """As kubectl does, when it goes over from client-side apply."""
    made = (await apply(api, configmap(make.namespace, "c", {"x": "1"}), "a")).expect(201)
    (entry,) = made["metadata"]["managedFields"]
    patch = {"metadata": {"managedFields": [entry | {"manager": "b"}]}}
    assert managers((await api.patch(CONFIGMAPS, make.namespace, "c", patch)).expect(200)) == [
        ("b", "Apply", "")
    ]
    (await apply(api, configmap(make.namespace, "c", {"x": "2"}), "a")).refused(409, "Conflict")


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


async def test_kubectl_goes_over_from_client_side_apply(kubectl: Kubectl, namespace: str) -> None:
    await kubectl.run("apply", "-f", "-", stdin=configmap(namespace, "c", {"x": "1", "y": "1"}))
    for data in ({"x": "1", "y": "1"}, {"x": "1"}):
        await kubectl.run("apply", "--server-side", "-f", "-", stdin=configmap(namespace, "c", data))
    got = (await kubectl.run("get", "configmap", "c", "-o", "json", namespace=namespace)).json
    assert got["data"] == {"x": "1"}, "what it had applied before is its own"
