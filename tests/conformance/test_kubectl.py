"""What people do with kubectl: apply, create, get, explain, scale."""

from __future__ import annotations

from typing import Any

import pytest

from controller.resources import CONFIGMAPS, NAMESPACES

from .kubectl import Kubectl
from .objects import unique, widget
from .rawapi import Api
from .resources import WG

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
