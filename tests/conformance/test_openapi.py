"""OpenAPI v3, as kubectl reads it to validate and to explain."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import Backend
from .kubectl import Kubectl
from .objects import crd, unique, with_spec
from .rawapi import Api
from .resources import (
    CRDS,
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


async def test_every_group_version_has_a_document(api: Api, backend: Backend) -> None:
    await published(api, backend, GROUP_PATH, f".{WIDGETS.kind}")
    index = (await api.call("GET", "/openapi/v3")).expect(200)["paths"]
    assert {"api/v1", "apis/coordination.k8s.io/v1", "apis/apiextensions.k8s.io/v1"} <= set(index)


@pytest.mark.parametrize(
    ("path", "collection", "kind"),
    [
        ("api/v1", "/api/v1/namespaces/{namespace}/pods", ("", "v1", "Pod")),
        (
            GROUP_PATH,
            f"/{GROUP_PATH}/namespaces/{{namespace}}/{WIDGETS.plural}",
            (WIDGETS.group, WIDGETS.version, WIDGETS.kind),
        ),
    ],
    ids=["built-in", "custom"],
)
async def test_writing_operations_offer_field_validation(
    api: Api, backend: Backend, path: str, collection: str, kind: tuple[str, str, str]
) -> None:
    body = await published(api, backend, path, "." + kind[2])
    assert body["openapi"].startswith("3.0")
    for where, method in ((collection, "post"), (collection + "/{name}", "patch")):
        operation = body["paths"][where][method]
        assert operation["x-kubernetes-group-version-kind"] == dict(
            zip(("group", "version", "kind"), kind, strict=True)
        )
        parameters = operation["parameters"] + body["paths"][where].get("parameters", [])
        assert "fieldValidation" in {parameter["name"] for parameter in parameters}


async def test_a_crd_keeps_its_descriptions_and_defaults_in_openapi(api: Api, backend: Backend) -> None:
    body = await published(api, backend, GROUP_PATH, f".{WIDGETS.kind}")
    schemas = body["components"]["schemas"]
    schema = next(
        schema
        for name, schema in schemas.items()
        if name.endswith(f".{WIDGETS.kind}")
        and {"group": WIDGETS.group, "version": WIDGETS.version, "kind": WIDGETS.kind}
        in schema.get("x-kubernetes-group-version-kind", [])
    )
    size = schema["properties"]["spec"]["properties"]["size"]
    assert size["description"] == "How big it is, in centimetres."
    assert size["default"] == 3


async def test_the_hash_changes_with_the_schema(api: Api, backend: Backend) -> None:
    async def address() -> str:
        index = (await api.call("GET", "/openapi/v3")).expect(200)["paths"]
        return str(index[GROUP_PATH]["serverRelativeURL"])

    before = await address()
    plural = unique("sprocket").replace("-", "") + "s"
    definition = crd(plural, plural[:-1].capitalize(), with_spec())
    (await api.create(CRDS, definition)).expect(201)
    await eventually(address, within_seconds=backend.patience_seconds, until=lambda url: url != before)
    await api.delete(CRDS, None, definition["metadata"]["name"])


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


async def test_kubectl_explains_recursively(kubectl: Kubectl, api: Api, backend: Backend) -> None:
    await published(api, backend, GROUP_PATH, f".{WIDGETS.kind}")
    output = await kubectl.run("explain", f"{WG}.spec", "--recursive")
    assert {"limits", "cpu", "parts"} <= {line.split()[0] for line in output.lines if line.split()}


async def test_kubectl_says_which_field_it_cannot_explain(kubectl: Kubectl) -> None:
    assert 'field "bogus" does not exist' in await kubectl.refused("explain", f"{WG}.spec.bogus")
