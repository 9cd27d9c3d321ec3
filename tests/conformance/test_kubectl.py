"""What people do with kubectl: apply, create, get, explain, scale."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import CONFIGMAPS, NAMESPACES

from .conftest import Maker
from .kubectl import Kubectl
from .objects import container, idle_deployment, unique, widget
from .rawapi import Api
from .resources import WG, WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


async def test_apply_adds_changes_and_removes(kubectl: Kubectl, namespace: str) -> None:
    first = widget(namespace, "w", {"size": 5, "attributes": {"x": "1", "y": "2"}})
    assert "created" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    assert "unchanged" in (await kubectl.run("apply", "-f", "-", stdin=first)).stdout
    second = widget(namespace, "w", {"color": "blue", "attributes": {"y": "3"}}, labels={"new": "yes"})
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", WG, "w", "-o", "json", namespace=namespace)).json
    assert got["spec"]["attributes"] == {"y": "3"}
    assert (got["spec"]["size"], got["spec"]["color"]) == (3, "blue")
    assert got["metadata"]["labels"] == {"new": "yes"}


async def test_apply_of_a_built_in_is_three_way_too(kubectl: Kubectl, namespace: str) -> None:
    def env(**values: str) -> list[JSON]:
        return [{"name": name, "value": value} for name, value in values.items()]

    first = idle_deployment(namespace, "d", container("a", env=env(X="1", Y="2")), container("b"))
    await kubectl.run("apply", "-f", "-", stdin=first)
    await kubectl.run("label", "deployment", "d", "kept=yes", namespace=namespace)
    second = idle_deployment(namespace, "d", container("a", env=env(Y="3", Z="4")))
    assert "configured" in (await kubectl.run("apply", "-f", "-", stdin=second)).stdout
    got = (await kubectl.run("get", "deployment", "d", "-o", "json", namespace=namespace)).json
    (only,) = got["spec"]["template"]["spec"]["containers"]
    assert sorted(only["env"], key=lambda e: e["name"]) == env(Y="3", Z="4")
    assert got["metadata"]["labels"]["kept"] == "yes"


async def test_apply_names_every_field_that_it_does_not_take(kubectl: Kubectl, namespace: str) -> None:
    unknown = widget(namespace, "w", {"bogus": 1, "parts": [{"name": "a", "odd": 2}]})
    said = await kubectl.refused("apply", "-f", "-", stdin=unknown)
    assert 'unknown field "spec.bogus"' in said and 'unknown field "spec.parts[0].odd"' in said
    accepted = await kubectl.run("apply", "--validate=warn", "-f", "-", stdin=unknown)
    assert 'Warning: unknown field "spec.bogus"' in accepted.stderr and "created" in accepted.stdout
    wrong = widget(namespace, "v", {"size": 0, "color": "pink"})
    said = await kubectl.refused("apply", "-f", "-", stdin=wrong)
    assert "spec.size: Invalid value: 0" in said and 'spec.color: Unsupported value: "pink"' in said
    misspelt = widget(namespace, "w") | {"kind": "Widgett"}
    assert 'no matches for kind "Widgett"' in await kubectl.refused("apply", "-f", "-", stdin=misspelt)


async def test_create_sends_objects_in_their_protobuf_form(
    kubectl: Kubectl, api: Api, controllers: None, namespace: str
) -> None:
    name = unique("conformance")
    try:
        assert (await kubectl.run("create", "namespace", name)).lines == [f"namespace/{name} created"]
        assert "AlreadyExists" in await kubectl.refused("create", "namespace", name)
    finally:
        await api.delete(NAMESPACES, None, name)
    for kind, *arguments in (
        ("configmap", "--from-literal=a=1", "--from-literal=empty="),
        ("serviceaccount",),
        ("rolebinding", "--clusterrole=view", "--user=somebody"),
    ):
        assert "created" in (await kubectl.run("create", kind, "x", *arguments, namespace=namespace)).stdout
    made = (await api.get(CONFIGMAPS, namespace, "x")).expect(200)
    assert made["data"] == {"a": "1", "empty": ""}
    token = (await kubectl.run("create", "token", "x", namespace=namespace)).stdout.strip()
    assert len(token.split(".")) == 3


async def test_get_shows_the_columns_of_a_kind(kubectl: Kubectl, make: Maker) -> None:
    await make.widget("a", {"size": 7, "note": "wide"}, labels={"k": "v"})
    narrow = await kubectl.run("get", WG, namespace=make.namespace)
    assert narrow.lines[0].split() == ["NAME", "SIZE", "COLOR", "PHASE", "READY", "AGE"]
    assert narrow.lines[1].split()[:3] == ["a", "7", "red"]
    wide = await kubectl.run("get", WG, "-o", "wide", "--show-labels", namespace=make.namespace)
    assert wide.lines[0].split()[-3:] == ["NOTE", "AGE", "LABELS"]
    assert "wide" in wide.lines[1] and "k=v" in wide.lines[1]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (f"{WG}.spec.size", ["FIELD: size <integer>", "How big it is, in centimetres."]),
        ("pod.spec.containers", ["FIELD: containers <[]Container>"]),
    ],
    ids=["custom", "built-in"],
)
async def test_explain(kubectl: Kubectl, field: str, expected: list[str]) -> None:
    output = await kubectl.run("explain", field)
    assert all(text in output.stdout for text in expected)


async def test_scale(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("w", {"replicas": 2})
    status = {"status": {"replicas": 2, "selector": "app=w"}}
    (await api.patch(WIDGETS, make.namespace, "w", status, sub="status")).expect(200)
    scale = (await api.get(WIDGETS, make.namespace, "w", sub="scale")).expect(200)
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 2, "selector": "app=w"})
    output = await kubectl.run("scale", f"{WG}/w", "--replicas=5", namespace=make.namespace)
    assert "scaled" in output.stdout
    assert (await api.get(WIDGETS, make.namespace, "w")).body["spec"]["replicas"] == 5
    (await api.put(WIDGETS, scale, sub="scale")).refused(409, "Conflict")
    (await api.patch(WIDGETS, make.namespace, "w", {"spec": {"max": 5}})).expect(200)
    beyond = await kubectl.refused("scale", f"{WG}/w", "--replicas=6", namespace=make.namespace)
    assert "replicas must not exceed max" in beyond
