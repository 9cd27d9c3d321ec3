"""How clients find out what is served: aggregated discovery, its older forms, and kubectl's view of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .backend import Backend
from .kubectl import Kubectl
from .objects import crd, unique, with_spec
from .rawapi import Api
from .resources import (
    CATEGORY,
    CRDS,
    WG,
    WIDGETS,
)
from .waiting import eventually

pytestmark = pytest.mark.real

JSON = dict[str, Any]

GROUP_PATH = f"/apis/{WIDGETS.group}/{WIDGETS.version}"


def aggregated(version: str) -> str:
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def discovered(body: JSON, group: str, plural: str) -> JSON | None:
    for item in body["items"]:
        if item["metadata"].get("name", "") == group:
            for version in item["versions"]:
                for resource in version["resources"]:
                    if resource["resource"] == plural:
                        return resource
    return None


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_aggregated_discovery_nests_subresources(api: Api, backend: Backend, version: str) -> None:
    core = await api.call("GET", "/api", accept=aggregated(version) + ",application/json")
    groups = await api.call("GET", "/apis", accept=aggregated(version) + ",application/json")
    if version == "v2beta1" and core.expect(200)["kind"] != "APIGroupDiscoveryList" and not backend.embedded:
        pytest.skip("this API server no longer serves apidiscovery.k8s.io/v2beta1")
    for reply in (core, groups):
        assert reply.expect(200)["kind"] == "APIGroupDiscoveryList"
        assert reply.body["apiVersion"] == f"apidiscovery.k8s.io/{version}"
        assert f"v={version}" in reply.headers["Content-Type"]
    pods = discovered(core.body, "", "pods")
    assert pods is not None
    assert pods["responseKind"] == {"group": "", "version": "", "kind": "Pod"}
    assert pods["scope"] == "Namespaced"
    assert pods["singularResource"] == "pod"
    assert pods["shortNames"] == ["po"]
    assert {"get", "list", "watch", "create", "update", "patch", "delete"} <= set(pods["verbs"])
    assert {"status", "log"} <= {sub["subresource"] for sub in pods["subresources"]}
    widgets = discovered(groups.body, WIDGETS.group, WIDGETS.plural)
    assert widgets is not None
    assert widgets["categories"] == [CATEGORY]
    scale = next(sub for sub in widgets["subresources"] if sub["subresource"] == "scale")
    assert scale["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}


async def test_the_newest_discovery_format_wins_when_several_are_accepted(api: Api) -> None:
    accept = ",".join([aggregated("v2"), aggregated("v2beta1"), "application/json"])
    body = (await api.call("GET", "/apis", accept=accept)).expect(200)
    assert body["apiVersion"] == "apidiscovery.k8s.io/v2"


async def test_legacy_discovery_of_groups(api: Api) -> None:
    core = (await api.call("GET", "/api")).expect(200)
    assert core["kind"] == "APIVersions"
    assert core["versions"] == ["v1"]
    groups = (await api.call("GET", "/apis")).expect(200)
    assert groups["kind"] == "APIGroupList"
    by_name = {group["name"]: group for group in groups["groups"]}
    assert {"coordination.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"} <= set(by_name)
    served = {"groupVersion": WIDGETS.api_version, "version": WIDGETS.version}
    assert by_name[WIDGETS.group]["preferredVersion"] == served
    one = (await api.call("GET", f"/apis/{WIDGETS.group}")).expect(200)
    assert one["kind"] == "APIGroup"
    assert served in one["versions"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1", {"pods", "pods/status", "pods/log", "namespaces", "events", "serviceaccounts/token"}),
        ("/apis/coordination.k8s.io/v1", {"leases"}),
        (GROUP_PATH, {WIDGETS.plural, f"{WIDGETS.plural}/status", f"{WIDGETS.plural}/scale"}),
    ],
    ids=["core", "built-in", "custom"],
)
async def test_legacy_discovery_of_resources(api: Api, path: str, expected: set[str]) -> None:
    body = (await api.call("GET", path)).expect(200)
    assert body["kind"] == "APIResourceList"
    assert expected <= {resource["name"] for resource in body["resources"]}
    for resource in body["resources"]:
        assert resource["kind"]
        assert isinstance(resource["namespaced"], bool)


@pytest.mark.parametrize(
    "path",
    ["/apis/nothing.example.com", f"{GROUP_PATH}/gadgets", "/api/v1/gadgets", "/api/v2", "/nothing"],
)
async def test_what_is_not_served_is_not_found(api: Api, path: str) -> None:
    assert (await api.call("GET", path)).status == 404


async def test_version_and_health(api: Api) -> None:
    version = (await api.call("GET", "/version")).expect(200)
    assert re.match(r"v1\.\d+", version["gitVersion"])
    assert version["major"] == "1"
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await api.call("GET", path, accept="*/*")).text == "ok"


async def test_a_new_kind_is_discovered_and_a_removed_one_forgotten(api: Api, backend: Backend) -> None:
    plural = unique("gadget").replace("-", "") + "s"
    definition = crd(plural, plural[:-1].capitalize(), with_spec())

    async def listed() -> bool:
        body = (await api.call("GET", "/apis", accept=aggregated("v2"))).expect(200)
        return discovered(body, WIDGETS.group, plural) is not None

    (await api.create(CRDS, definition)).expect(201)
    await eventually(listed, within_seconds=backend.patience_seconds)
    (await api.delete(CRDS, None, definition["metadata"]["name"])).expect(200)
    await eventually(listed, within_seconds=backend.patience_seconds, until=lambda there: not there)


async def test_kubectl_lists_what_is_served(kubectl: Kubectl) -> None:
    resources = await kubectl.run("api-resources", "--api-group", WIDGETS.group)
    row = next(line for line in resources.lines if line.startswith(f"{WIDGETS.plural} "))
    assert row.split() == [WIDGETS.plural, WG, WIDGETS.api_version, "true", WIDGETS.kind]
    assert WIDGETS.api_version in (await kubectl.run("api-versions")).lines
    version = (await kubectl.run("version", "-o", "json")).json
    assert version["serverVersion"]["gitVersion"].startswith("v1.")


@pytest.mark.parametrize(
    "spelling",
    [WIDGETS.plural, WIDGETS.singular, WG, WIDGETS.kind, WIDGETS.group_resource],
    ids=["plural", "singular", "short", "kind", "with-group"],
)
async def test_kubectl_knows_every_spelling_of_a_kind(
    kubectl: Kubectl, namespace: str, spelling: str
) -> None:
    output = await kubectl.run("get", spelling, namespace=namespace)
    assert f"No resources found in {namespace} namespace." in output.stderr


async def test_kubectl_gets_a_category(kubectl: Kubectl, make: Any) -> None:
    await make.widget("in-category")
    output = await kubectl.run("get", CATEGORY, "-o", "name", namespace=make.namespace)
    assert output.lines == [f"{WIDGETS.singular_group}/in-category"]


async def test_kubectl_says_when_a_kind_is_unknown(kubectl: Kubectl) -> None:
    assert "doesn't have a resource type" in await kubectl.refused("get", "gizmos")
