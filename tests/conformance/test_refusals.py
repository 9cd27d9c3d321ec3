"""What the embedded API server leaves out, it refuses at once and says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import configmap, widget
from .rawapi import APPLY_PATCH, Api
from .resources import CONFIGMAPS, WIDGETS, Resource

JSON = dict[str, Any]

PROTOBUF = "application/vnd.kubernetes.protobuf"

pytestmark = pytest.mark.usefixtures("embedded")


@pytest.mark.parametrize("resource", [CONFIGMAPS, WIDGETS], ids=["built-in", "custom"])
async def test_server_side_apply(api: Api, make: Maker, resource: Resource) -> None:
    obj = configmap(make.namespace, "x") if resource is CONFIGMAPS else widget(make.namespace, "x")
    reply = await api.patch(resource, make.namespace, "x", obj, content_type=APPLY_PATCH, fieldManager="test")
    message = reply.refused(415, "UnsupportedMediaType")["message"]
    assert "no server-side apply" in message
    assert "merge patch" in message


async def test_protobuf(api: Api, namespace: str) -> None:
    reply = await api.call("POST", CONFIGMAPS.path(namespace), raw=b"k8s\x00", content_type=PROTOBUF)
    assert PROTOBUF in reply.refused(415, "UnsupportedMediaType")["message"]
    reply = await api.call("GET", CONFIGMAPS.path(namespace), accept=f"{PROTOBUF},application/json")
    assert reply.expect(200)["kind"] == "ConfigMapList"


async def test_kubectl_apply_server_side(kubectl: Kubectl, namespace: str) -> None:
    said = await kubectl.refused("apply", "--server-side", "-f", "-", stdin=widget(namespace, "w"))
    assert "no server-side apply" in said


@pytest.mark.parametrize(
    "command",
    [
        ("create", "configmap", "c", "--from-literal=a=1"),
        ("create", "namespace", "n"),
        ("create", "secret", "generic", "s", "--from-literal=a=1"),
        ("auth", "can-i", "list", "pods"),
    ],
    ids=" ".join,
)
async def test_kubectl_commands_that_send_protobuf(
    kubectl: Kubectl, namespace: str, command: tuple[str, ...]
) -> None:
    said = await kubectl.refused(*command, namespace=namespace)
    assert PROTOBUF in said
    assert "kubectl apply -f" in said
