"""OpenAPI v3, as kubectl reads it to validate and to explain."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import Backend
from .kubectl import Kubectl
from .rawapi import Api
from .resources import (
    WG,
    WIDGETS,
)
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

GROUP_PATH = f"apis/{WIDGETS.group}/{WIDGETS.version}"


async def document(api: Api, path: str) -> JSON:
    index = (await api.call("GET", "/openapi/v3")).expect(200)["paths"]
    url = index[path]["serverRelativeURL"]
    assert url.startswith(f"/openapi/v3/{path}?hash=")
    relative, _, query = url.partition("?hash=")
    return (await api.call("GET", relative, query={"hash": query})).expect(200)


async def published(api: Api, backend: Backend, path: str, component: str) -> JSON:
    """The document, once it has a component whose name ends so: CRDs are published with a delay."""

    async def probe() -> JSON | None:
        index = (await api.call("GET", "/openapi/v3")).expect(200)["paths"]
        if path not in index:
            return None
        body = await document(api, path)
        return body if any(name.endswith(component) for name in body["components"]["schemas"]) else None

    body = await eventually(probe, within_seconds=backend.patience_seconds)
    assert body
    return body


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (WG, [f"KIND:       {WIDGETS.kind}", "Widget is a thing to try API servers with."]),
        (f"{WG}.spec", ["FIELD: spec <Object>", "What is wanted of the widget."]),
        (f"{WG}.spec.size", ["FIELD: size <integer>", "How big it is, in centimetres."]),
        (f"{WG}.spec.parts.count", ["FIELD: count <integer>"]),
        ("pod.spec.containers", ["FIELD: containers <[]Container>"]),
        ("lease.spec.leaseDurationSeconds", ["FIELD: leaseDurationSeconds <integer>"]),
    ],
    ids=["kind", "object", "scalar", "item", "built-in-list", "built-in-scalar"],
)
async def test_kubectl_explains(
    kubectl: Kubectl, api: Api, backend: Backend, field: str, expected: list[str]
) -> None:
    await published(api, backend, GROUP_PATH, f".{WIDGETS.kind}")
    output = await kubectl.run("explain", field)
    for text in expected:
        assert text in output.stdout


async def test_kubectl_says_which_field_it_cannot_explain(kubectl: Kubectl) -> None:
    assert 'field "bogus" does not exist' in await kubectl.refused("explain", f"{WG}.spec.bogus")
