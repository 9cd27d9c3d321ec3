"""What the embedded API server leaves out, it refuses at once and says what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .rawapi import APPLY_PATCH, Api
from .resources import CONFIGMAPS, WIDGETS

JSON = dict[str, Any]

PROTOBUF = "application/vnd.kubernetes.protobuf"

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("embedded")]


async def test_server_side_apply_of_a_scale(api: Api, make: Maker) -> None:
    await make.widget()
    scale = (await api.get(WIDGETS, make.namespace, "w", sub="scale")).expect(200)
    query = {"sub": "scale", "content_type": APPLY_PATCH, "fieldManager": "test"}
    reply = await api.patch(WIDGETS, make.namespace, "w", scale, **query)
    message = reply.refused(415, "UnsupportedMediaType")["message"]
    assert "accepted media types include" in message and "application/merge-patch+json" in message


async def test_protobuf_of_kinds_that_nobody_sends(api: Api, namespace: str) -> None:
    reply = await api.call("POST", CONFIGMAPS.path(namespace), raw=b"k8s\x00", content_type=PROTOBUF)
    message = reply.refused(415, "UnsupportedMediaType")["message"]
    assert PROTOBUF in message
    assert "kubectl apply -f" in message
    reply = await api.call("GET", CONFIGMAPS.path(namespace), accept=f"{PROTOBUF},application/json")
    assert reply.expect(200)["kind"] == "ConfigMapList"
