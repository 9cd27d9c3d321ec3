"""How clients find out what is served: aggregated discovery, its older forms, and kubectl's view of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .kubectl import Kubectl
from .rawapi import Api
from .resources import (
    CATEGORY,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

GROUP_PATH = f"/apis/{WIDGETS.group}/{WIDGETS.version}"


AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def discovered(body: JSON, group: str, plural: str) -> JSON | None:
    for item in body["items"]:
        if item["metadata"].get("name", "") == group:
            for version in item["versions"]:
                for resource in version["resources"]:
                    if resource["resource"] == plural:
                        return resource
    return None


async def test_aggregated_discovery_nests_subresources(api: Api) -> None:
    core = await api.call("GET", "/api", accept=AGGREGATED + ",application/json")
    groups = await api.call("GET", "/apis", accept=AGGREGATED + ",application/json")
    for reply in (core, groups):
        assert reply.expect(200)["kind"] == "APIGroupDiscoveryList"
        assert reply.body["apiVersion"] == "apidiscovery.k8s.io/v2"
        assert "v=v2" in reply.headers["Content-Type"]
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
